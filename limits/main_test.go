package limits

import (
	"testing"

	"go.uber.org/goleak"
)

// TestMain wants no goroutine left of any test: the worker ends with its Limiter.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
