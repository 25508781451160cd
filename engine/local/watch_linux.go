package local

import "golang.org/x/sys/unix"

// gone tells which of the sockets have lost their peer: closed, or half closed.
func gone(fds []unix.PollFd) int {
	for i := range fds {
		fds[i].Events, fds[i].Revents = unix.POLLRDHUP, 0
	}
	n, err := unix.Poll(fds, 0)
	if err != nil {
		return 0
	}
	return n
}

type pollFd = unix.PollFd

func newPollFd(fd uintptr) pollFd { return pollFd{Fd: int32(fd)} }

func isGone(p pollFd) bool {
	return p.Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0
}
