// Package sched is the embedded engine's scheduler.
package sched
