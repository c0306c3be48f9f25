// Package order makes orders and moves them through their states. It owns t_order and t_order_history.
//
// Promise: one business action makes one order, whatever is repeated, lost or down; an order moves only along the state
// table, each move once for its cause, and everything a move owes (stock, message, history) commits with it.
//
// The guards of Create, in the order a request meets them, and what each is for:
//
//	1 Idempotency-Key   a retry gets the first answer again
//	2 submit token      a page submits once; a double click waits for the first
//	3 lock              repeats of one action queue instead of racing
//	4 key record        twins that raced past all this: one commits, the others replay
//	5 uk_biz_token      the same action under other keys and tokens: one row
//	6 stock, coupon     conditional updates, and a movement row that a cause can write once
//
// 1 to 3 save work and answer nicely; 4 to 6 decide. Redis may be down or every upper guard switched off: 5 and 6 hold.
//
// What a caller sees on a repeat: the first result again, as a success. The loser of a race returns the winner's order.
package order
