package grant

import (
	"strconv"

	"example.com/oncepay/internal/activity"
	"example.com/oncepay/internal/apperr"
	"example.com/oncepay/internal/bizkey"
	"example.com/oncepay/internal/idemkey"
)

// The business keys of grants (contract section 4). Their values stand in databases: a changed rule needs a new version in the
// prefix and a migration.

// activityGrantKey names a person's coupon of an activity. The last field is its sequence: there is one for each person, and a
// rule that grants a second can count on.
func activityGrantKey(userID int64, activityID string) string {
	return bizkey.Build("g1:a", strconv.FormatInt(userID, 10), activityID, "1")
}

// redemptionGrantKey names the coupon that a redemption bought.
func redemptionGrantKey(redemptionNo string) string { return bizkey.Build("g1:r", redemptionNo) }

// redemptionNo is the number of a redemption: the request's own key stands for it, as nothing else makes two of them one.
func redemptionNo(k idemkey.Key) string {
	return bizkey.Build("pr1", strconv.FormatInt(k.Caller, 10), k.Value)
}

// checkTemplate checks a template's name, which has the form of an activity's id.
func checkTemplate(s string) error {
	if activity.ParseID(s) != nil {
		return apperr.New(apperr.Invalid, "template_invalid", "A coupon template has 1 to 64 letters, digits, _ or -.")
	}
	return nil
}
