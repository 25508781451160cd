package limits

import (
	"context"
	"errors"
	"time"
)

type redisStore struct{}

func newRedisStore(*Limiter, Options) (*redisStore, error) {
	return nil, errors.New("limits: redis is not built yet")
}
func (*redisStore) start()                      {}
func (*redisStore) close(context.Context) error { return nil }
func (*redisStore) gateways() int64             { return 1 }
func (*redisStore) reserve(context.Context, time.Time, *Reservation) (bool, []violation) {
	return false, nil
}
func (*redisStore) trySlot(time.Time, *Reservation) bool { return false }
func (*redisStore) settle(time.Time, *Reservation, Cost) {}
