"""How people come in: the HTTP API, the command line and the replay tool."""
