package order

import (
	"strconv"

	"example.com/oncepay/internal/bizkey"
)

// The business keys of order creation (contract section 4). Their values stand in t_order.biz_token: a changed rule needs
// a new version in the prefix and a migration.
//
// In an activity the action is "this person buys this SKU in this activity"; the attempt goes up only past orders that
// ended without a sale, so that a repeat finds its own order and a person may buy again. The article's user+sku+activity
// alone would forbid buying after a cancel. Elsewhere the action is one filled-in form (its submit token), or without a
// form the caller's own Idempotency-Key.

func (in CreateInput) bizToken(attempt int) string {
	user := strconv.FormatInt(in.UserID, 10)
	switch {
	case in.ActivityID != "":
		return bizkey.Build("o1:a", user, strconv.FormatInt(in.SKUID, 10), in.ActivityID, strconv.Itoa(attempt))
	case in.Token != "":
		return bizkey.Build("o1:t", user, in.Token)
	default:
		return bizkey.Build("o1:k", user, in.Key.Value)
	}
}

// lockKey is as wide as the action and no wider: not the user, not the endpoint (S0 §7.1). It is the business key without
// the attempt, which is only known inside.
func (in CreateInput) lockKey() string {
	if in.ActivityID == "" {
		return in.bizToken(1)
	}
	return bizkey.Build("o1:a", strconv.FormatInt(in.UserID, 10), strconv.FormatInt(in.SKUID, 10), in.ActivityID)
}

// claimOwner names the request that claims a submit token, so that the same request sent again is recognised, by any
// instance.
func (in CreateInput) claimOwner() string {
	return bizkey.Build("c1", strconv.FormatInt(in.UserID, 10), in.Key.Value)
}

func stockCause(orderNo string) string { return bizkey.Build("o1", orderNo) }

func messageID(orderNo string, version int) string {
	return bizkey.Build("m1:o", orderNo, strconv.Itoa(version))
}
