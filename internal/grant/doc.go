// Package grant gives coupons and points, once for each cause. It owns t_coupon, t_point_account, t_point_entry, t_order_points
// and t_coupon_code.
//
// Promise: a person gets one coupon in an activity, and an activity grants no more than its limit; points and the coupon they buy
// move together or not at all; an order has earned the points of the money that stayed, whatever order its messages come in.
//
// The guards, and what each is for:
//
//	1 Idempotency-Key   a retry gets the first answer again
//	2 uk_grant_key      a coupon is granted once for its activity and user, or for its redemption, under whatever key
//	3 uk_cause_kind     points change once for a message or a redemption
//	4 refund_seq        of two messages about an order's money the newer counts
//	5 conditional updates of the activity's count, the balance and the coupon's status, whose affected rows are read
//
// There is neither submit token nor lock: 1 commits with the effect, and queueing before 2 to 5 would change no outcome.
//
// What a caller sees on a repeat: the coupon that was granted, as a success. Making a code is the exception: nothing but the
// Idempotency-Key makes two requests one, so it is demanded.
package grant
