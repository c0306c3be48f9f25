package embedded

import "syscall"

// sysProcAttr asks for a process group of its own and for SIGKILL when the parent dies. SIGTERM would not do: a paused
// server does not see it.
func sysProcAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
