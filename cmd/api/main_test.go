package main

import (
	"testing"

	"example.com/oncepay/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }
