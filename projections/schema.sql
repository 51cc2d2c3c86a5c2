-- The tables of projections.db: what the log says, for people. Times are UTC as ISO text, durations seconds.
-- Everything here can be thrown away and made again from log.db with `cuebook replay rebuild`.

CREATE TABLE position ( -- how far into the log these tables go; one row
    id INTEGER PRIMARY KEY CHECK (id = 1), -- always 1
    decision_id INTEGER NOT NULL, -- last decision that is in the tables
    command_id TEXT NOT NULL, -- its command: tells this log from another one
    seq INTEGER NOT NULL, -- last event that is in the tables
    at TEXT -- when that decision was made
) STRICT;

CREATE TABLE epochs ( -- terms of office: which node was master, and since when
    epoch INTEGER PRIMARY KEY, -- number of the term
    node_id TEXT NOT NULL REFERENCES nodes(node_id), -- the master
    incarnation TEXT NOT NULL, -- the run of its process
    started_at TEXT NOT NULL, -- when the term began
    seq INTEGER NOT NULL -- event in the log
) STRICT;

CREATE TABLE decisions ( -- every command and report that was decided on, and what came of it
    decision_id INTEGER PRIMARY KEY, -- number of the decision, counted from 1
    at TEXT NOT NULL, -- when it was decided
    command TEXT NOT NULL, -- type of the command or report
    subject TEXT NOT NULL, -- what it was about
    asked TEXT NOT NULL, -- what was asked or reported, in words
    outcome TEXT NOT NULL CHECK (outcome IN ('accepted', 'rejected', 'nothing to do')), -- what became of it
    reason TEXT NOT NULL, -- why it was rejected, or else what happened because of it, in words
    reason_code TEXT, -- stable code of a rejection
    n_events INTEGER NOT NULL, -- number of events it made
    first_seq INTEGER, -- its first event in the log
    last_seq INTEGER, -- its last event in the log
    epoch INTEGER NOT NULL REFERENCES epochs(epoch), -- term in which it was decided
    origin TEXT NOT NULL, -- node that reported, or else decided
    command_id TEXT NOT NULL UNIQUE, -- the idempotency key
    decider TEXT NOT NULL, -- code that decided
    decider_version INTEGER NOT NULL -- and its version
) STRICT;

CREATE TABLE timeline ( -- every event in one readable line
    seq INTEGER PRIMARY KEY, -- position in the log
    at TEXT NOT NULL, -- when it happened
    type TEXT NOT NULL, -- type of the event
    subject TEXT NOT NULL, -- what it is about
    sentence TEXT NOT NULL, -- what happened, in words
    instance_id TEXT REFERENCES instances(instance_id), -- instance that it concerns
    decision_id INTEGER NOT NULL REFERENCES decisions(decision_id) -- decision that made it
) STRICT;
CREATE INDEX timeline_instance ON timeline(instance_id) WHERE instance_id IS NOT NULL;
CREATE INDEX timeline_subject ON timeline(subject);

CREATE TABLE nodes ( -- machines of the cluster, as they last reported themselves
    node_id TEXT PRIMARY KEY, -- id of the node
    name TEXT NOT NULL, -- host name
    status TEXT NOT NULL CHECK (status IN ('up', 'down')), -- whether its process runs
    incarnation TEXT NOT NULL, -- the run of its process
    version TEXT NOT NULL, -- version of Cuebook
    pid INTEGER NOT NULL, -- process id
    platform TEXT NOT NULL, -- operating system and architecture
    api_url TEXT NOT NULL, -- where its HTTP API answers
    memory_total_bytes INTEGER NOT NULL, -- memory of the machine
    memory_available_bytes INTEGER NOT NULL, -- memory that placement may count on
    disk_free_bytes INTEGER NOT NULL, -- room for model files; 0 until the first reading
    memory_total_gib REAL GENERATED ALWAYS AS (round(memory_total_bytes / 1073741824.0, 2)), -- the same in GiB
    memory_available_gib REAL GENERATED ALWAYS AS (round(memory_available_bytes / 1073741824.0, 2)), -- the same in GiB
    disk_free_gib REAL GENERATED ALWAYS AS (round(disk_free_bytes / 1073741824.0, 2)), -- the same in GiB
    first_seen_at TEXT NOT NULL, -- first start in this log
    started_at TEXT, -- last start
    stopped_at TEXT, -- end of the last run; empty while it is up
    stopped_because TEXT, -- why it ended
    changed_at TEXT NOT NULL, -- last change of this row
    changed_seq INTEGER NOT NULL -- event of that change
) STRICT;

CREATE TABLE devices ( -- what can carry a rank of an instance
    node_id TEXT NOT NULL REFERENCES nodes(node_id), -- node that has it
    device_id TEXT NOT NULL, -- such as cpu:0, metal:0, cuda:3
    kind TEXT NOT NULL, -- cpu, metal, cuda or npu
    name TEXT NOT NULL, -- what the maker calls it
    memory_bytes INTEGER NOT NULL, -- its memory
    memory_free_bytes INTEGER, -- of memory of its own, what was free when the node started; empty where not known
    memory_gib REAL GENERATED ALWAYS AS (round(memory_bytes / 1073741824.0, 2)), -- the same in GiB
    PRIMARY KEY (node_id, device_id)
) STRICT;

CREATE TABLE engines ( -- what can compute on a node, as its self-test found
    node_id TEXT NOT NULL REFERENCES nodes(node_id), -- node that has it
    engine TEXT NOT NULL, -- such as mlx
    version TEXT NOT NULL, -- version of the engine's library
    usable INTEGER NOT NULL, -- 1 where the self-test passed
    detail TEXT NOT NULL, -- what the self-test says
    dtype TEXT NOT NULL, -- number format that it computes best in here
    devices TEXT NOT NULL, -- devices it can use
    options TEXT NOT NULL, -- choices that change speed or the last bits
    PRIMARY KEY (node_id, engine)
) STRICT;

CREATE TABLE models ( -- known models, from their config.json
    model_id TEXT PRIMARY KEY, -- name of the model
    model_type TEXT NOT NULL, -- architecture
    n_params INTEGER NOT NULL, -- parameters
    n_layers INTEGER NOT NULL, -- layers
    hidden_size INTEGER NOT NULL, -- width
    n_heads INTEGER NOT NULL, -- attention heads
    n_kv_heads INTEGER NOT NULL, -- of them with keys and values of their own
    head_dim INTEGER NOT NULL, -- width of a head
    vocab_size INTEGER NOT NULL, -- tokens in the vocabulary
    max_context INTEGER NOT NULL, -- tokens that a sequence may have
    n_experts INTEGER NOT NULL, -- experts; 0 in a dense model
    dtype TEXT NOT NULL, -- number format of the weights
    quantization TEXT, -- bits and group size, empty where none
    weight_bytes INTEGER NOT NULL, -- size of the weight files
    weight_gib REAL GENERATED ALWAYS AS (round(weight_bytes / 1073741824.0, 2)), -- the same in GiB
    has_chat_template INTEGER NOT NULL, -- 1 where it can chat
    source TEXT NOT NULL, -- directory, hub or package
    location TEXT NOT NULL, -- path, repository or distribution
    revision TEXT NOT NULL, -- commit, tag or version
    digest TEXT NOT NULL, -- checksum, where known
    described_at TEXT NOT NULL, -- when it became known
    changed_at TEXT NOT NULL, -- last change of this row
    changed_seq INTEGER NOT NULL -- event of that change
) STRICT;

CREATE TABLE model_locations ( -- where the files of a model are, and were
    model_id TEXT NOT NULL REFERENCES models(model_id), -- the model
    node_id TEXT NOT NULL REFERENCES nodes(node_id), -- node that has or had it
    path TEXT NOT NULL, -- directory on the node
    size_bytes INTEGER NOT NULL, -- size of all files
    size_gib REAL GENERATED ALWAYS AS (round(size_bytes / 1073741824.0, 2)), -- the same in GiB
    stored_at TEXT NOT NULL, -- when they were found or fetched
    gone_at TEXT, -- when they disappeared; empty while they are there
    PRIMARY KEY (model_id, node_id)
) STRICT;

CREATE TABLE downloads ( -- every fetch of model files, one row an attempt
    download_id INTEGER PRIMARY KEY, -- the event that started it
    model_id TEXT NOT NULL REFERENCES models(model_id), -- what is fetched
    node_id TEXT NOT NULL REFERENCES nodes(node_id), -- where to
    attempt INTEGER NOT NULL, -- counted from 1 since the last success
    status TEXT NOT NULL CHECK (status IN ('running', 'stored', 'failed', 'interrupted')), -- how it stands
    done_bytes INTEGER NOT NULL, -- as last recorded
    total_bytes INTEGER NOT NULL, -- 0 until known
    percent REAL GENERATED ALWAYS AS (round(100.0 * done_bytes / nullif(total_bytes, 0), 1)), -- done of total
    total_gib REAL GENERATED ALWAYS AS (round(total_bytes / 1073741824.0, 2)), -- total in GiB
    source TEXT NOT NULL, -- where from
    started_at TEXT NOT NULL, -- begin of the attempt
    ended_at TEXT, -- its end
    failure_code TEXT, -- why it failed, for programs
    failure TEXT, -- why it failed, in words
    retry_at TEXT -- when it is tried again
) STRICT;
CREATE INDEX downloads_model ON downloads(model_id, node_id);

CREATE TABLE instances ( -- what users want to run, and how it stands
    instance_id TEXT PRIMARY KEY, -- id of the instance
    model_id TEXT NOT NULL REFERENCES models(model_id), -- model it serves
    status TEXT NOT NULL CHECK (status IN ('waiting', 'placed', 'ready', 'failed', 'deleted')), -- how it stands
    failed_attempts INTEGER NOT NULL, -- placements that failed since the last success
    cause_code TEXT, -- its last trouble, for programs
    cause TEXT, -- its last trouble, in words
    retry_at TEXT, -- when it is placed again
    placement_id INTEGER REFERENCES placements(placement_id), -- where it runs now
    wanted_strategy TEXT NOT NULL, -- wish: how to shard
    wanted_context INTEGER NOT NULL, -- wish: tokens a sequence; 0 for the model's own
    wanted_batch INTEGER NOT NULL, -- wish: sequences at a time
    wanted_engine TEXT NOT NULL, -- wish: engine; empty for any
    wanted_dtype TEXT NOT NULL, -- wish: number format; empty for the engine's best
    wanted_node_id TEXT NOT NULL, -- wish: node; empty for any
    wanted_device_id TEXT NOT NULL, -- wish: device; empty for any
    requested_at TEXT NOT NULL, -- when it was asked for
    placed_at TEXT, -- last placement
    ready_at TEXT, -- since when it takes tasks
    deleted_at TEXT, -- when it was no longer wanted
    changed_at TEXT NOT NULL, -- last change of this row
    changed_seq INTEGER NOT NULL -- event of that change
) STRICT;

CREATE TABLE placements ( -- every attempt to run an instance somewhere
    placement_id INTEGER PRIMARY KEY, -- the event that placed it
    instance_id TEXT NOT NULL REFERENCES instances(instance_id), -- instance that was placed
    attempt INTEGER NOT NULL, -- counted from 1 since the last success
    outcome TEXT NOT NULL CHECK (outcome IN ('starting', 'ready', 'set back', 'failed', 'retried', 'deleted')), -- how it went
    reason TEXT, -- why it ended, in words
    engine TEXT NOT NULL, -- what computes
    dtype TEXT NOT NULL, -- number format
    strategy TEXT NOT NULL, -- how layers or tensors are sharded
    context INTEGER NOT NULL, -- tokens that a sequence may have
    batch INTEGER NOT NULL, -- sequences at a time
    n_ranks INTEGER NOT NULL, -- runners that take part
    placed_at TEXT NOT NULL, -- when it was decided
    ready_at TEXT, -- when every rank was ready
    load_s REAL, -- seconds from placement to ready
    ended_at TEXT, -- when it became void
    decision_id INTEGER NOT NULL REFERENCES decisions(decision_id) -- decision that chose it
) STRICT;
CREATE INDEX placements_instance ON placements(instance_id);

CREATE TABLE ranks ( -- the parts of each placement: which runner, where, with which layers
    placement_id INTEGER NOT NULL REFERENCES placements(placement_id), -- the placement
    rank INTEGER NOT NULL, -- number in its group, from 0
    runner_id TEXT NOT NULL REFERENCES runners(runner_id), -- process that carries it
    node_id TEXT NOT NULL REFERENCES nodes(node_id), -- on this node
    device_id TEXT NOT NULL, -- on this device
    start_layer INTEGER NOT NULL, -- first layer
    end_layer INTEGER NOT NULL, -- layer after the last one
    reserved_bytes INTEGER NOT NULL, -- memory set aside
    reserved_gib REAL GENERATED ALWAYS AS (round(reserved_bytes / 1073741824.0, 2)), -- the same in GiB
    PRIMARY KEY (placement_id, rank)
) STRICT;

CREATE TABLE candidates ( -- every device that a placement considered, and the verdict
    placement_id INTEGER NOT NULL REFERENCES placements(placement_id), -- the placement
    position INTEGER NOT NULL, -- order in which they were considered, from 1
    node_id TEXT NOT NULL REFERENCES nodes(node_id), -- the node
    device_id TEXT NOT NULL, -- the device
    engine TEXT NOT NULL, -- the engine
    dtype TEXT NOT NULL, -- the number format
    verdict TEXT NOT NULL CHECK (verdict IN ('chosen', 'fits', 'refused')), -- what was decided
    reasons TEXT NOT NULL, -- why, in words
    has_files INTEGER NOT NULL, -- 1 where the model's files were there already
    weights_bytes INTEGER NOT NULL, -- memory for the weights
    kv_bytes INTEGER NOT NULL, -- memory for the KV caches of a full batch
    overhead_bytes INTEGER NOT NULL, -- memory for everything else
    needed_bytes INTEGER NOT NULL, -- the sum
    free_bytes INTEGER NOT NULL, -- what was free
    needed_gib REAL GENERATED ALWAYS AS (round(needed_bytes / 1073741824.0, 2)), -- needed, in GiB
    free_gib REAL GENERATED ALWAYS AS (round(free_bytes / 1073741824.0, 2)), -- free, in GiB
    PRIMARY KEY (placement_id, position)
) STRICT;

CREATE TABLE runners ( -- processes that carry a rank of an instance
    runner_id TEXT PRIMARY KEY, -- id of the runner
    instance_id TEXT NOT NULL REFERENCES instances(instance_id), -- instance it serves
    placement_id INTEGER REFERENCES placements(placement_id), -- placement that wanted it
    rank INTEGER, -- its number in the group
    node_id TEXT NOT NULL REFERENCES nodes(node_id), -- where it runs
    device_id TEXT NOT NULL, -- on which device
    status TEXT NOT NULL, -- last status
    detail TEXT NOT NULL, -- more on that status, in words
    current INTEGER NOT NULL, -- 1 while its placement holds
    pid INTEGER, -- process id
    placed_at TEXT NOT NULL, -- when it was wanted
    ready_at TEXT, -- when it was ready
    ended_at TEXT, -- when its process had ended
    signal TEXT, -- signal that killed it
    exit_code INTEGER, -- exit code, where it had one
    changed_at TEXT NOT NULL, -- last change of this row
    changed_seq INTEGER NOT NULL -- event of that change
) STRICT;
CREATE INDEX runners_instance ON runners(instance_id);

CREATE TABLE runner_history ( -- every recorded change of status of a runner
    seq INTEGER NOT NULL, -- event in the log
    at TEXT NOT NULL, -- when it was recorded
    runner_id TEXT NOT NULL REFERENCES runners(runner_id), -- the runner
    instance_id TEXT NOT NULL REFERENCES instances(instance_id), -- its instance
    status TEXT NOT NULL, -- new status
    detail TEXT NOT NULL, -- more on it, in words
    decision_id INTEGER NOT NULL REFERENCES decisions(decision_id), -- decision that recorded it
    PRIMARY KEY (seq, runner_id)
) STRICT;
CREATE INDEX runner_history_runner ON runner_history(runner_id);

CREATE TABLE tasks ( -- every request for tokens, open and ended; prompts and answers are not in the log
    task_id TEXT PRIMARY KEY, -- id of the task
    request_id TEXT NOT NULL, -- HTTP request that it belongs to
    choice INTEGER NOT NULL, -- its number in that request, from 0
    status TEXT NOT NULL CHECK (status IN ('open', 'cancelling', 'finished', 'failed', 'cancelled')), -- how it stands
    kind TEXT NOT NULL, -- chat or completion
    model_id TEXT NOT NULL REFERENCES models(model_id), -- model that answers
    instance_id TEXT NOT NULL REFERENCES instances(instance_id), -- instance that it was given to
    runner_id TEXT NOT NULL REFERENCES runners(runner_id), -- runner that computes it
    finish_reason TEXT, -- stop or length, where it finished
    cause_code TEXT, -- why it failed, for programs
    cause TEXT, -- why it failed or was cancelled, in words
    prompt_tokens INTEGER, -- tokens read
    completion_tokens INTEGER, -- tokens written
    seconds REAL GENERATED ALWAYS AS (round((julianday(ended_at) - julianday(created_at)) * 86400, 3)), -- from creation to end
    queued_s REAL, -- seconds that it waited in the runner
    prefill_s REAL, -- seconds on the prompt
    decode_s REAL, -- seconds on the answer
    tokens_per_s REAL GENERATED ALWAYS AS (round(completion_tokens / nullif(decode_s, 0), 2)), -- speed of decoding
    max_tokens INTEGER NOT NULL, -- longest answer allowed; 0 for all the room there is
    temperature REAL NOT NULL, -- 0 for the likeliest token
    top_p REAL NOT NULL, -- nucleus
    seed INTEGER NOT NULL, -- of the random draws
    created_at TEXT NOT NULL, -- when it was accepted
    ended_at TEXT, -- when it ended
    decision_id INTEGER NOT NULL REFERENCES decisions(decision_id) -- decision that created it
) STRICT;
CREATE INDEX tasks_instance ON tasks(instance_id);
CREATE INDEX tasks_runner ON tasks(runner_id);
CREATE INDEX tasks_request ON tasks(request_id);
CREATE INDEX tasks_model ON tasks(model_id);

CREATE TABLE failures ( -- everything that went wrong, and why
    failure_id INTEGER PRIMARY KEY, -- event in the log
    at TEXT NOT NULL, -- when
    kind TEXT NOT NULL CHECK (kind IN ('runner', 'instance', 'task', 'download', 'node', 'actor', 'migration')), -- sort of thing that failed
    subject TEXT NOT NULL, -- what failed
    code TEXT NOT NULL, -- stable code, for programs
    sentence TEXT NOT NULL, -- why, in words
    detail TEXT NOT NULL, -- numbers and the end of stderr, where known
    instance_id TEXT REFERENCES instances(instance_id), -- instance that it concerned
    decision_id INTEGER NOT NULL REFERENCES decisions(decision_id) -- decision that recorded it
) STRICT;
CREATE INDEX failures_subject ON failures(subject);

CREATE TABLE actors ( -- parts of a node's own process that crashed or were spoken to when dead
    node_id TEXT NOT NULL REFERENCES nodes(node_id), -- the node
    actor TEXT NOT NULL, -- name of the actor
    crashes INTEGER NOT NULL, -- how often it crashed
    last_error TEXT, -- last error
    last_action TEXT, -- what its supervisor did
    last_crash_at TEXT, -- when
    dead_letters INTEGER NOT NULL, -- messages that came too late
    last_dead_letter TEXT, -- one of them
    PRIMARY KEY (node_id, actor)
) STRICT;

CREATE TABLE expert_placements ( -- which expert each slot of each MoE layer holds now, for instances with EPLB
    instance_id TEXT NOT NULL REFERENCES instances(instance_id), -- the instance
    layer INTEGER NOT NULL, -- MoE layer, counted from 0
    slot INTEGER NOT NULL, -- physical slot of the layer, from 0
    expert INTEGER NOT NULL, -- logical expert in it
    rank INTEGER NOT NULL, -- rank that has the slot
    epoch INTEGER NOT NULL, -- epoch in which the layer was last placed
    PRIMARY KEY (instance_id, layer, slot)
) STRICT;

CREATE TABLE expert_epochs ( -- placements of experts that were committed, one after the other
    instance_id TEXT NOT NULL REFERENCES instances(instance_id), -- the instance
    epoch INTEGER NOT NULL, -- number of the placement, from 1
    reason TEXT NOT NULL, -- why experts were placed like this, in words
    migration_id TEXT REFERENCES migrations(migration_id), -- migration that made it; none for a first placement
    began_at TEXT NOT NULL, -- commit of its first layer
    complete_at TEXT, -- when all ranks computed all its layers by it
    began_seq INTEGER NOT NULL, -- event of that commit
    PRIMARY KEY (instance_id, epoch)
) STRICT;

CREATE TABLE load_windows ( -- load of experts as ranks reported it, window by window
    window_id INTEGER PRIMARY KEY, -- event in the log
    at TEXT NOT NULL, -- when it was reported
    instance_id TEXT NOT NULL REFERENCES instances(instance_id), -- the instance
    window INTEGER NOT NULL, -- its number, from 1 for each runner of rank 0
    epoch INTEGER NOT NULL, -- placement that it was counted under
    taken INTEGER NOT NULL, -- 1 where it was taken, 0 where it was refused
    phase TEXT, -- steps that count: all, prefill or decode
    steps INTEGER, -- engine steps that were counted
    tokens INTEGER, -- tokens in them
    seconds REAL, -- time of those steps
    tokens_per_s REAL GENERATED ALWAYS AS (round(tokens / nullif(seconds, 0), 2)), -- speed in the window
    balance REAL, -- mean load of a rank by the hottest one's, each summed over the layers; 1 is even
    hottest_rank INTEGER, -- rank with the most rows
    bandwidth REAL, -- bytes per second in which a rank can receive experts
    cause_code TEXT, -- why it was refused, for programs
    cause TEXT, -- why it was refused, in words
    decision_id INTEGER NOT NULL REFERENCES decisions(decision_id) -- decision that recorded it
) STRICT;
CREATE INDEX load_windows_instance ON load_windows(instance_id, epoch);

CREATE TABLE expert_loads ( -- load of each MoE layer in the last window that was taken
    instance_id TEXT NOT NULL REFERENCES instances(instance_id), -- the instance
    layer INTEGER NOT NULL, -- MoE layer, counted from 0
    window_id INTEGER NOT NULL REFERENCES load_windows(window_id), -- the window
    rows INTEGER NOT NULL, -- rows that the layer's experts computed
    experts TEXT NOT NULL, -- JSON array: rows of each logical expert
    ranks TEXT NOT NULL, -- JSON array: rows of each rank
    balance REAL NOT NULL, -- mean load of a rank by the hottest one's
    PRIMARY KEY (instance_id, layer)
) STRICT;

CREATE TABLE rebalance_decisions ( -- every proposal of a policy, adopted or not, and why
    rebalance_id INTEGER PRIMARY KEY, -- event in the log
    at TEXT NOT NULL, -- when it was weighed
    instance_id TEXT NOT NULL REFERENCES instances(instance_id), -- the instance
    window INTEGER NOT NULL, -- load window that it rests on
    epoch INTEGER NOT NULL, -- placement at that time
    policy TEXT NOT NULL, -- policy that proposed
    policy_version INTEGER NOT NULL, -- and its version
    adopted INTEGER NOT NULL, -- 1 where the experts were to move
    reason TEXT NOT NULL, -- why or why not, in words
    balance_now REAL NOT NULL, -- balance in the window
    balance_predicted REAL NOT NULL, -- balance that the proposal would have given it
    balance_bound REAL NOT NULL, -- best balance that any placement could have given it
    layers INTEGER NOT NULL, -- layers that change
    moves INTEGER NOT NULL, -- experts that ranks must receive
    bytes_total INTEGER NOT NULL, -- bytes to send in all
    bytes_busiest INTEGER NOT NULL, -- bytes that the busiest rank receives
    saving_s REAL NOT NULL, -- seconds saved over the horizon, as predicted
    cost_s REAL NOT NULL, -- seconds that the move costs
    migration_id TEXT REFERENCES migrations(migration_id), -- migration that follows, where adopted
    decision_id INTEGER NOT NULL REFERENCES decisions(decision_id) -- decision that weighed it
) STRICT;
CREATE INDEX rebalance_decisions_instance ON rebalance_decisions(instance_id);
CREATE INDEX rebalance_decisions_migration ON rebalance_decisions(migration_id);

CREATE TABLE migrations ( -- moves of experts between slots, each the way to a new epoch
    migration_id TEXT PRIMARY KEY, -- id of the migration
    instance_id TEXT NOT NULL REFERENCES instances(instance_id), -- the instance
    epoch INTEGER NOT NULL, -- placement that it leads to
    status TEXT NOT NULL CHECK (status IN ('open', 'complete', 'aborted')), -- how it stands
    layers INTEGER NOT NULL, -- layers that were to change
    slots INTEGER NOT NULL, -- slots that were to be filled anew
    layers_committed INTEGER NOT NULL, -- layers whose new map holds
    layers_applied INTEGER NOT NULL, -- layers that all ranks computed by it
    planned_at TEXT NOT NULL, -- when it was decided
    ended_at TEXT, -- its end
    seconds REAL GENERATED ALWAYS AS (round((julianday(ended_at) - julianday(planned_at)) * 86400, 3)), -- from plan to end
    failed_layer INTEGER, -- layer at which it was aborted
    failed_stage TEXT, -- staging, or committed
    cause_code TEXT, -- why it was aborted, for programs
    cause TEXT, -- why it was aborted, in words
    decision_id INTEGER NOT NULL REFERENCES decisions(decision_id) -- decision that planned it
) STRICT;
CREATE INDEX migrations_instance ON migrations(instance_id);

CREATE TABLE migration_layers ( -- the layers of each migration, in the order in which they move
    migration_id TEXT NOT NULL REFERENCES migrations(migration_id), -- the migration
    position INTEGER NOT NULL, -- order, from 1
    layer INTEGER NOT NULL, -- MoE layer, counted from 0
    status TEXT NOT NULL CHECK (status IN ('planned', 'committed', 'applied', 'left')), -- how far it came
    slots INTEGER NOT NULL, -- slots to fill anew
    moves TEXT NOT NULL, -- which expert goes from where to where, in words
    map TEXT NOT NULL, -- JSON array: expert in each slot afterwards
    bytes INTEGER, -- bytes that went between ranks
    stage_s REAL, -- seconds until all ranks had the rows
    apply_s REAL, -- seconds that batches waited while ranks applied it
    digest TEXT, -- of map and lookup, equal on all ranks
    committed_at TEXT, -- when its new map began to hold
    applied_at TEXT, -- when all ranks computed by it
    PRIMARY KEY (migration_id, position)
) STRICT;
