// Package dedup is the consumers' side of the outbox: it makes each message take effect once for each consumer, however often and
// from wherever it comes. It owns t_message_dedup and t_subscription; of t_outbox it writes next_look_at alone.
//
// Promise: the unique index uk_consumer_msg decides, and the insert comes first. An effect in our database commits in one
// transaction with the mark that it happened, so that a failure takes both away and the message can come again. An effect outside
// cannot be in a transaction: the run that makes the call holds the row by a lease, calls with the message's id as key, and only
// the holder may write the row afterwards. A call whose run died is therefore made again under the same key.
//
// A message that fails is tried again by Retry, not by the broker, so that it blocks no other; after MaxTries it is a dead letter,
// with an exception, until a person replays or discards it. What the broker lost, Rescue finds and delivers without the broker.
// Which of two messages is the newer is not decided here but by the version of the thing they speak of (see the handlers).
//
// What a caller sees on a repeat: nothing; it is acknowledged. What is not yet durable is never acknowledged.
package dedup
