//go:build !linux

package embedded

import "syscall"

// sysProcAttr asks for a process group of its own. Only Linux can tie a child's life to its parent's.
func sysProcAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
