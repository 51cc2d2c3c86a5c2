BEGIN TRANSACTION;
CREATE TABLE decisions (
        decision_id INTEGER PRIMARY KEY,
        time TEXT AS (strftime('%Y-%m-%dT%H:%M:%fZ', at, 'unixepoch')) VIRTUAL,
        outcome TEXT AS (iif(reason IS NULL, 'accepted', 'rejected')) VIRTUAL,
        command_type TEXT NOT NULL,
        command_id TEXT NOT NULL UNIQUE,
        command_version INTEGER NOT NULL,
        command TEXT NOT NULL,
        reason TEXT,
        first_seq INTEGER NOT NULL,
        n_events INTEGER NOT NULL,
        facts TEXT NOT NULL,
        decider TEXT NOT NULL,
        decider_version INTEGER NOT NULL,
        epoch INTEGER NOT NULL,
        origin TEXT NOT NULL,
        at REAL NOT NULL,
        hash TEXT NOT NULL,
        CHECK (reason IS NULL OR n_events = 0)
    ) STRICT
    ;
INSERT INTO "decisions" VALUES(1,'StartEpoch','cmd-start',1,'{"type":"StartEpoch","node_id":"node-1","incarnation":"inc-1","command_id":"cmd-start"}',NULL,1,1,'{"now":1700000000.25,"seed":"seed","epoch":0,"node_id":"node-1"}','cluster',1,1,'node-1',1700000000.25,'fbe6ad327e7d333734eb60ff315ed86b');
INSERT INTO "decisions" VALUES(2,'PlaceInstance','cmd-place-1',1,'{"type":"PlaceInstance","model_id":"m","settings":{"shard_strategy":"auto","context":0,"batch":8,"engine":"","dtype":"","node_id":"","device_id":"","ranks":0},"command_id":"cmd-place-1"}',NULL,2,1,'{"now":1700000001.25,"seed":"seed","epoch":1,"node_id":"node-1"}','cluster',1,1,'node-1',1700000001.25,'0a535b28b234c35c071804e716fe68f0');
INSERT INTO "decisions" VALUES(3,'CancelTasks','cmd-finish-2',1,'{"type":"CancelTasks","task_ids":["task-2"],"reason":"client left","command_id":"cmd-finish-2"}',NULL,3,2,'{"now":1700000002.25,"seed":"seed","epoch":1,"node_id":"node-1"}','cluster',1,1,'node-1',1700000002.25,'8357d969e114e38b7e2242010f288e8f');
INSERT INTO "decisions" VALUES(4,'DeleteInstance','cmd-delete-3',1,'{"type":"DeleteInstance","instance_id":"inst-0","command_id":"cmd-delete-3"}','{"code":"unknown_instance","message":"There is no inst-0.","detail":{"instances":0}}',5,0,'{"now":1700000003.25,"seed":"seed","epoch":1,"node_id":"node-1"}','cluster',1,1,'node-1',1700000003.25,'d3ef26445dc9fad758ca969216e98937');
INSERT INTO "decisions" VALUES(5,'ReportResources','cmd-read-4',1,'{"type":"ReportResources","memory_available":4,"disk_free":4,"command_id":"cmd-read-4","origin":"node-2"}',NULL,5,1,'{"now":1700000004.25,"seed":"seed","epoch":1,"node_id":"node-1"}','cluster',1,1,'node-2',1700000004.25,'b791e8e3da31ac98a93a144211f98c6f');
INSERT INTO "decisions" VALUES(6,'CancelTasks','cmd-finish-5',1,'{"type":"CancelTasks","task_ids":["task-5"],"reason":"client left","command_id":"cmd-finish-5"}',NULL,6,2,'{"now":1700000005.25,"seed":"seed","epoch":1,"node_id":"node-1"}','cluster',1,1,'node-1',1700000005.25,'23d770a75703260d2b4ad46667fe1895');
INSERT INTO "decisions" VALUES(7,'DeleteInstance','cmd-delete-6',1,'{"type":"DeleteInstance","instance_id":"inst-0","command_id":"cmd-delete-6"}','{"code":"unknown_instance","message":"There is no inst-0.","detail":{"instances":0}}',8,0,'{"now":1700000006.25,"seed":"seed","epoch":1,"node_id":"node-1"}','cluster',1,1,'node-1',1700000006.25,'dced82be6e462e58ce392587dd085e61');
INSERT INTO "decisions" VALUES(8,'CancelTasks','cmd-finish-7',1,'{"type":"CancelTasks","task_ids":["task-7"],"reason":"client left","command_id":"cmd-finish-7"}',NULL,8,2,'{"now":1700000007.25,"seed":"seed","epoch":1,"node_id":"node-1"}','cluster',1,1,'node-1',1700000007.25,'cb257a28f80ae88e96e5a0e612e12ef9');
CREATE TABLE events (
        seq INTEGER PRIMARY KEY,
        time TEXT AS (strftime('%Y-%m-%dT%H:%M:%fZ', at, 'unixepoch')) VIRTUAL,
        type TEXT NOT NULL,
        subject TEXT NOT NULL,
        version INTEGER NOT NULL,
        body TEXT NOT NULL,
        decision_id INTEGER NOT NULL REFERENCES decisions (decision_id),
        epoch INTEGER NOT NULL,
        origin TEXT NOT NULL,
        at REAL NOT NULL,
        hash TEXT NOT NULL
    ) STRICT
    ;
INSERT INTO "events" VALUES(1,'EpochStarted','node-1',1,'{"type":"EpochStarted","epoch":1,"node_id":"node-1","incarnation":"inc-1"}',1,1,'node-1',1700000000.25,'1ce9cc4e10d4f03dcd74f12ee0824399');
INSERT INTO "events" VALUES(2,'InstanceRequested','inst-1',1,'{"type":"InstanceRequested","instance_id":"inst-1","model_id":"m","settings":{"shard_strategy":"auto","context":0,"batch":8,"engine":"","dtype":"","node_id":"","device_id":"","ranks":0}}',2,1,'node-1',1700000001.25,'6de84920344a724a2df0be95da5161a3');
INSERT INTO "events" VALUES(3,'TaskCancelRequested','task-2',1,'{"type":"TaskCancelRequested","task_id":"task-2","reason":"client left"}',3,1,'node-1',1700000002.25,'9b509372213c4932ceb8fa0f5c57c664');
INSERT INTO "events" VALUES(4,'TaskFinished','task-2',1,'{"type":"TaskFinished","task_id":"task-2","finish_reason":"stop","usage":{"prompt_tokens":2,"completion_tokens":4},"timings":{"queued_s":0.5,"prefill_s":1.5,"decode_s":0.25}}',3,1,'node-1',1700000002.25,'bb2d892056056304ce6baf202cb4f9bd');
INSERT INTO "events" VALUES(5,'NodeResourcesChanged','node-2',1,'{"type":"NodeResourcesChanged","node_id":"node-2","memory_available":4,"disk_free":4}',5,1,'node-2',1700000004.25,'d12527da791a6325a93b89a66d5aecad');
INSERT INTO "events" VALUES(6,'TaskCancelRequested','task-5',1,'{"type":"TaskCancelRequested","task_id":"task-5","reason":"client left"}',6,1,'node-1',1700000005.25,'ce56e35be6a1ff058270727831b966af');
INSERT INTO "events" VALUES(7,'TaskFinished','task-5',1,'{"type":"TaskFinished","task_id":"task-5","finish_reason":"stop","usage":{"prompt_tokens":5,"completion_tokens":10},"timings":{"queued_s":0.5,"prefill_s":1.5,"decode_s":0.625}}',6,1,'node-1',1700000005.25,'2344df0d1536a77a9c5a69e0fae4cc95');
INSERT INTO "events" VALUES(8,'TaskCancelRequested','task-7',1,'{"type":"TaskCancelRequested","task_id":"task-7","reason":"client left"}',8,1,'node-1',1700000007.25,'216eab98f20bd9f627635a5cc23ef4c0');
INSERT INTO "events" VALUES(9,'TaskFinished','task-7',1,'{"type":"TaskFinished","task_id":"task-7","finish_reason":"stop","usage":{"prompt_tokens":7,"completion_tokens":14},"timings":{"queued_s":0.5,"prefill_s":1.5,"decode_s":0.875}}',8,1,'node-1',1700000007.25,'301450f76141b2af042fba91c4c13f0f');
CREATE TABLE meta (
        name TEXT PRIMARY KEY,
        value TEXT NOT NULL
    ) STRICT, WITHOUT ROWID
    ;
INSERT INTO "meta" VALUES('format','1');
INSERT INTO "meta" VALUES('hash','see events/chain.py: each row covers the one before it');
INSERT INTO "meta" VALUES('order','decisions and their events, each numbered from 1 without gaps');
INSERT INTO "meta" VALUES('times','Unix seconds in "at"; the same as UTC text in "time"');
INSERT INTO "meta" VALUES('what','Cuebook decision log');
CREATE INDEX events_by_subject ON events (subject);
CREATE TRIGGER decisions_refuse_update BEFORE UPDATE ON decisions BEGIN SELECT RAISE(ABORT, 'the log is append-only: rows of decisions stay as they are'); END;
CREATE TRIGGER decisions_refuse_delete BEFORE DELETE ON decisions BEGIN SELECT RAISE(ABORT, 'the log is append-only: rows of decisions stay as they are'); END;
CREATE TRIGGER events_refuse_update BEFORE UPDATE ON events BEGIN SELECT RAISE(ABORT, 'the log is append-only: rows of events stay as they are'); END;
CREATE TRIGGER events_refuse_delete BEFORE DELETE ON events BEGIN SELECT RAISE(ABORT, 'the log is append-only: rows of events stay as they are'); END;
CREATE VIEW timeline AS
    SELECT events.seq, events.time, events.type, events.subject, decisions.command_type AS caused_by,
           events.origin, events.decision_id, events.body
    FROM events JOIN decisions USING (decision_id);
CREATE VIEW refusals AS
    SELECT decision_id, time, command_type, reason ->> 'message' AS reason, reason ->> 'code' AS code,
           origin, command
    FROM decisions WHERE reason IS NOT NULL;
COMMIT;
PRAGMA application_id = 1129661762;
PRAGMA user_version = 1;
