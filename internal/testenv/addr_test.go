package testenv_test

// servers returns the TCP addresses of the real MySQL (root without a password)
// and the real Redis that the proxies are tested with.
func servers() (mysqlAddr, redisAddr string) {
	return "127.0.0.1:3306", "127.0.0.1:6379"
}
