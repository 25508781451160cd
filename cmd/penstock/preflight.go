package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"

	"penstock/configs"
	"penstock/engine"
)

// launched is one launch block of a configuration.
type launched struct {
	key string // as models[0].engines[1].launch
	*configs.Launch
}

func launchesOf(c *configs.Config) []launched {
	var all []launched
	for i := range c.Models {
		for j := range c.Models[i].Engines {
			if l := c.Models[i].Engines[j].Launch; l != nil {
				all = append(all, launched{fmt.Sprintf("models[%d].engines[%d].launch", i, j), l})
			}
		}
	}
	return all
}

// preflight checks the flags of all launched engines at once and returns every
// refusal. What cannot be checked is a warning.
func preflight(ctx context.Context, log *slog.Logger, c *configs.Config) error {
	all := launchesOf(c)
	results := make([]error, len(all))
	var wg sync.WaitGroup
	for i, l := range all {
		if !l.Preflight {
			log.Warn(l.key + ": flags not checked, since preflight is false")
			continue
		}
		wg.Go(func() { results[i] = engine.Preflight(ctx, *l.Launch) })
	}
	wg.Wait()
	var refusals []error
	for i, err := range results {
		text := ""
		if err != nil {
			text = strings.TrimPrefix(err.Error(), "launch.command: ")
		}
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, engine.ErrUnchecked):
			log.Warn(all[i].key + ".command: " + text)
		default:
			refusals = append(refusals, c.ErrorAt(all[i].key+".command", text))
		}
	}
	return errors.Join(refusals...)
}
