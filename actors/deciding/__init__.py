"""The decider's rules, one module for each kind of entity. All pure: see `actors.decider`."""
