package replay

import (
	"context"
	"errors"
	"io"
)

type HTTPOptions struct{}

func overHTTP(context.Context, *Trace, Options, io.Writer) (Result, error) {
	return Result{}, errors.New("todo")
}
