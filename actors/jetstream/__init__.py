"""The log's order on NATS JetStream: a stream that is the log, and a key with a time to live, the lease."""
