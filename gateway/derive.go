package gateway

import (
	"context"
	"fmt"
	"log/slog"
	"slices"

	"penstock/configs"
	"penstock/engine"
	"penstock/limits"
)

// Derive asks the engines of a configuration with limits.mode: auto what they
// can run, and returns it with the numbers that would be in force. Engines that
// are to be launched are not; those that do not answer within ctx are named in
// the error, and the numbers are those of the others.
func Derive(ctx context.Context, cfg *configs.Config, log *slog.Logger) (*configs.Config, error) {
	asked := *cfg
	asked.Models = slices.Clone(cfg.Models)
	for i := range asked.Models {
		m := &asked.Models[i]
		m.Engines = slices.DeleteFunc(slices.Clone(m.Engines), func(e configs.Engine) bool { return e.Launch != nil })
	}
	fleet := engine.NewFleet(engine.Options{Logger: log})
	defer fleet.Close()
	if err := fleet.Apply(ctx, &asked); err != nil {
		return nil, err
	}
	silent := fleet.WaitKnown(ctx)
	caps := map[string][]limits.Capacity{}
	for _, r := range fleet.Replicas() {
		c := r.Capacity()
		caps[r.Model()] = append(caps[r.Model()], limits.Capacity{KVTokens: c.KVTokens, MaxRunning: c.MaxRunning})
	}
	out := *cfg
	out.Models = slices.Clone(cfg.Models)
	for i := range out.Models {
		m := &out.Models[i]
		for model, c := range caps {
			if model == m.Name || m.Name == "" {
				derived(m, limits.Auto(c))
			}
		}
	}
	if silent != nil {
		return &out, fmt.Errorf("limits.mode auto: %w", silent)
	}
	return &out, nil
}

// derived writes what limits.mode: auto has derived into a model's settings.
func derived(m *configs.Model, d limits.Derived) {
	m.Queue.MaxLength = d.MaxLength
	if m.Limits.Concurrency == 0 {
		m.Limits.Concurrency = d.Concurrency
	}
}
