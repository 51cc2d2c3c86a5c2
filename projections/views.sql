-- Ready-made answers to what people ask. Each is a view of projections.db; see schema.sql for the tables.

CREATE VIEW what_runs_where AS -- what runs where: each wanted instance with its runners, nodes and devices
SELECT i.model_id AS model, i.instance_id, i.status AS instance_status, n.name AS node, k.device_id AS device,
       k.rank, k.runner_id, r.status AS runner_status, r.pid, p.engine, p.dtype, p.context, p.batch,
       k.start_layer || ' to ' || (k.end_layer - 1) AS layers, k.reserved_gib,
       (SELECT count(*) FROM tasks t WHERE t.runner_id = r.runner_id AND t.ended_at IS NULL) AS open_tasks,
       i.ready_at AS ready_since, i.cause AS last_trouble
FROM instances i
LEFT JOIN placements p ON p.placement_id = i.placement_id
LEFT JOIN ranks k ON k.placement_id = p.placement_id
LEFT JOIN runners r ON r.runner_id = k.runner_id
LEFT JOIN nodes n ON n.node_id = k.node_id
WHERE i.status <> 'deleted'
ORDER BY i.requested_at, k.rank;

CREATE VIEW what_is_stored_where AS -- which model files are on which node now
SELECT l.model_id AS model, n.name AS node, l.path, l.size_gib, l.stored_at, m.dtype, m.quantization
FROM model_locations l JOIN models m USING (model_id) LEFT JOIN nodes n ON n.node_id = l.node_id
WHERE l.gone_at IS NULL
ORDER BY l.model_id, n.name;

CREATE VIEW what_failed_and_why AS -- failures, latest first, with the command or report that brought them to light
SELECT f.at, f.kind, f.subject, f.code, f.sentence AS why, i.model_id AS model, f.instance_id,
       d.asked AS learnt_from, d.decision_id, f.failure_id AS seq
FROM failures f JOIN decisions d USING (decision_id) LEFT JOIN instances i ON i.instance_id = f.instance_id
ORDER BY f.failure_id DESC;

CREATE VIEW rejected_commands AS -- commands that were refused, latest first, and the reason given
SELECT at, command, subject, asked, reason_code AS code, reason, decision_id
FROM decisions WHERE outcome = 'rejected'
ORDER BY decision_id DESC;

CREATE VIEW placement_explained AS -- for each placement every candidate: chosen, fitting or refused, and why
SELECT p.placed_at, i.model_id AS model, p.instance_id, p.attempt, c.position, n.name AS node,
       c.device_id AS device, c.engine, c.dtype, c.verdict, c.reasons, c.needed_gib, c.free_gib,
       CASE c.has_files WHEN 1 THEN 'yes' ELSE 'no' END AS has_files, p.outcome, p.placement_id
FROM candidates c JOIN placements p USING (placement_id) JOIN instances i USING (instance_id)
LEFT JOIN nodes n ON n.node_id = c.node_id
ORDER BY p.placement_id DESC, c.position;

CREATE VIEW instance_story AS -- what happened to each instance, in order
SELECT t.instance_id, i.model_id AS model, t.at, t.sentence, d.asked AS because, t.decision_id, t.seq
FROM timeline t JOIN instances i USING (instance_id) JOIN decisions d USING (decision_id)
ORDER BY t.instance_id, t.seq;

CREATE VIEW slowest_tasks AS -- ended tasks, slowest first, and where their time went
SELECT task_id, model_id AS model, seconds, queued_s, prefill_s, decode_s, tokens_per_s, prompt_tokens,
       completion_tokens, status, coalesce(finish_reason, cause_code) AS ended_with, instance_id, created_at
FROM tasks WHERE ended_at IS NOT NULL
ORDER BY seconds DESC;

CREATE VIEW tokens_per_model AS -- tokens and speed of each model so far
SELECT model_id AS model, count(*) AS tasks, sum(status = 'finished') AS finished, sum(status = 'failed') AS failed,
       sum(status = 'cancelled') AS cancelled, sum(ended_at IS NULL) AS open,
       sum(prompt_tokens) AS prompt_tokens, sum(completion_tokens) AS completion_tokens,
       round(sum(CASE WHEN decode_s > 0 THEN completion_tokens END) / nullif(sum(decode_s), 0), 2) AS tokens_per_s,
       min(created_at) AS first_task_at, max(created_at) AS last_task_at
FROM tasks GROUP BY model_id ORDER BY completion_tokens DESC;

CREATE VIEW time_in_status AS -- how long each runner spent in each recorded status
SELECT runner_id, instance_id, status, detail, at AS since,
       round((julianday(lead(at) OVER (PARTITION BY runner_id ORDER BY seq)) - julianday(at)) * 86400, 3) AS seconds
FROM runner_history
ORDER BY runner_id, seq;

CREATE VIEW node_health AS -- each node with its devices, engines and troubles at a glance
SELECT n.node_id, n.name, n.status, n.memory_available_gib, n.memory_total_gib, n.disk_free_gib, n.started_at,
       n.stopped_because,
       (SELECT group_concat(device_id, ', ') FROM devices d WHERE d.node_id = n.node_id) AS devices,
       (SELECT group_concat(engine, ', ') FROM engines e WHERE e.node_id = n.node_id AND usable) AS engines,
       (SELECT count(*) FROM runners r WHERE r.node_id = n.node_id AND r.current) AS runners,
       (SELECT total(crashes) FROM actors a WHERE a.node_id = n.node_id) AS actor_crashes
FROM nodes n ORDER BY n.name;

CREATE VIEW expert_balance AS -- balance of ranks before and after each placement of experts, as predicted and as measured
SELECT i.model_id AS model, e.instance_id, e.epoch, e.began_at, d.balance_now AS before, d.balance_predicted AS predicted,
       d.balance_bound AS at_best,
       (SELECT round(avg(w.balance), 4) FROM load_windows w
        WHERE w.instance_id = e.instance_id AND w.epoch = e.epoch AND w.taken) AS measured,
       (SELECT round(sum(w.tokens) / nullif(sum(w.seconds), 0), 2) FROM load_windows w
        WHERE w.instance_id = e.instance_id AND w.epoch = e.epoch AND w.taken) AS tokens_per_s,
       (SELECT count(*) FROM load_windows w
        WHERE w.instance_id = e.instance_id AND w.epoch = e.epoch AND w.taken) AS windows,
       d.moves, coalesce(d.reason, e.reason) AS why, e.migration_id
FROM expert_epochs e JOIN instances i USING (instance_id)
LEFT JOIN rebalance_decisions d ON d.migration_id = e.migration_id
ORDER BY e.instance_id, e.epoch;

CREATE VIEW hottest_experts AS -- share of its layer's load that each expert had in the last window, largest first, and where it is
SELECT i.model_id AS model, l.instance_id, l.layer, j.key AS expert, j.value AS rows,
       round(100.0 * j.value / nullif(l.rows, 0), 2) AS percent_of_layer,
       (SELECT group_concat('slot ' || p.slot || ' on rank ' || p.rank, ', ') FROM expert_placements p
        WHERE p.instance_id = l.instance_id AND p.layer = l.layer AND p.expert = j.key) AS copies
FROM expert_loads l JOIN instances i USING (instance_id), json_each(l.experts) j
ORDER BY percent_of_layer DESC, l.instance_id, l.layer, j.key;

CREATE VIEW what_moved_and_why AS -- moves of experts layer by layer, latest migration first, with the decision behind them
SELECT m.planned_at, i.model_id AS model, m.instance_id, m.migration_id, m.epoch, m.status AS migration, l.layer,
       l.status, l.moves, d.reason AS why, d.balance_now AS balance_before, d.balance_predicted, l.stage_s, l.apply_s,
       m.cause AS aborted_because, m.decision_id
FROM migrations m JOIN migration_layers l USING (migration_id) JOIN instances i USING (instance_id)
LEFT JOIN rebalance_decisions d ON d.migration_id = m.migration_id
ORDER BY m.decision_id DESC, l.position;

CREATE VIEW refused_windows AS -- load windows that were not taken, latest first, and why
SELECT w.at, i.model_id AS model, w.instance_id, w.window, w.epoch, w.cause_code AS code, w.cause AS why, w.window_id AS seq
FROM load_windows w JOIN instances i USING (instance_id)
WHERE NOT w.taken
ORDER BY w.window_id DESC;
