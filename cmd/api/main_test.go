package main

import (
	"os"
	"testing"

	"example.com/oncepay/internal/testenv"
)

// asAPI makes the test binary be the api itself, for tests that kill it.
const asAPI = "ONCEPAY_TEST_BINARY_IS_API"

func TestMain(m *testing.M) {
	if os.Getenv(asAPI) != "" {
		main()
		return
	}
	testenv.Main(m)
}
