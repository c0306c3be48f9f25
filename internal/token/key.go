package token

import (
	"slices"
	"strconv"

	"example.com/oncepay/internal/apperr"
)

// SceneOrderCreate is the form that makes an order.
const SceneOrderCreate = "order.create"

// maxValueLength leaves room for the longer tokens of other issuers; ours have 32 characters.
const maxValueLength = 64

// ValidScene returns Invalid "scene_unknown" unless tokens are issued for the scene.
func ValidScene(scene string) error {
	if !slices.Contains([]string{SceneOrderCreate}, scene) {
		return apperr.New(apperr.Invalid, "scene_unknown", "The scene must be %q.", SceneOrderCreate)
	}
	return nil
}

// ValidValue returns Invalid "submit_token_invalid" unless value is 1 to 64 of A-Z, a-z, 0-9, "_" and "-". Nothing is
// folded or trimmed: case matters.
func ValidValue(value string) error {
	valid := len(value) >= 1 && len(value) <= maxValueLength
	for i := 0; valid && i < len(value); i++ {
		c := value[i]
		valid = 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '-'
	}
	if !valid {
		return apperr.New(apperr.Invalid, "submit_token_invalid",
			"A submit token has 1 to %d letters, digits, _ or -.", maxValueLength).At(apperr.LayerToken)
	}
	return nil
}

// redisKey is where a token lives, or Invalid for parts that no token can have. The parts cannot run into each other, as
// none may hold a colon or a brace. The braces are the hash tag of a cluster.
func redisKey(scene string, user int64, value string) (string, error) {
	if err := ValidScene(scene); err != nil {
		return "", err
	}
	if err := ValidValue(value); err != nil {
		return "", err
	}
	return "oncepay:token:{" + scene + ":" + strconv.FormatInt(user, 10) + ":" + value + "}", nil
}
