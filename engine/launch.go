package engine

import (
	"context"
	"errors"
)

func (f *Fleet) prepareLaunch(context.Context, *entry) error {
	return errors.New("launch: not built in")
}
