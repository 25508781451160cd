package router

// SetOptions takes over changed settings: a reload. The block size and the seed
// stay, since keys that requests have already made depend on them.
func (p *Pool) SetOptions(o Options) {
	o = o.withDefaults()
	p.mu.Lock()
	defer p.mu.Unlock()
	if o.Policy != p.o.Policy && p.o.Custom == nil {
		p.policy = newPolicy(o.Policy)
		p.o.Policy = o.Policy
	}
	index := o.IndexFactor != p.o.IndexFactor
	o.Policy, o.BlockTokens, o.Seed, o.Custom, o.Eager = p.o.Policy, p.o.BlockTokens, p.o.Seed, p.o.Custom, p.o.Eager
	p.o = o
	if index {
		for _, r := range *p.list.Load() {
			r.sizeIndex()
		}
	}
}

// IndexBytes is the memory of all replicas' indexes.
func (p *Pool) IndexBytes() int {
	n := 0
	for _, r := range p.Replicas() {
		r.index.mu.RLock()
		n += len(r.index.table)*8 + cap(r.index.entries)*32
		r.index.mu.RUnlock()
	}
	return n
}
