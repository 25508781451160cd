package engine

import "context"

// openai is any server that speaks OpenAI's API and tells no more than its models.
type openai struct{}

func (o *openai) discover(ctx context.Context, c *client) (*Facts, error) {
	served, err := readModels(ctx, c)
	if err != nil && !notThere(err) {
		return nil, err
	}
	return &Facts{
		Kind: KindOpenAI, Tongue: KindOpenAI, Models: modelInfos(served),
		Ranks: []RankFacts{{}}, owner: ownerKind(served),
	}, nil
}

func (o *openai) load(context.Context, *client) ([]rankLoad, error) { return nil, errNoLoad }

// probe asks for the models. That a server has no such list is an answer too.
func (o *openai) probe(ctx context.Context, c *client) error {
	_, err := c.get(ctx, "/v1/models")
	if notThere(err) {
		return nil
	}
	return err
}
