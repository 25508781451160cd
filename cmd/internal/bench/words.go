package bench

import (
	"math/rand/v2"
	"strings"
)

// words is what prompts are made of: short and common, so that nearly every
// tokenizer has one token for each with its leading space.
const words = "able about above after again air all also always and animal answer any area around ask away back ball base be because been before began behind best better between big bird black blue boat body book both box boy bring brought build but by call came can car care carry change check child city class clear close cold color come could country course cover cross cut dark day deep did different do dog done door down draw dry during each early earth east easy eat end enough even ever every example eye face fact fall family far farm fast father feel feet few field figure fill find fire first fish five fly follow food foot for form found four free friend from front full game gave get girl give go gold good got government great green ground group grow had half hand happen hard has have he head hear heat help her here high him his hold home horse hot hour house how hundred idea if in inch interest into island it just keep kind king knew know land language large last late laugh lay lead learn leave left less let letter life light like line list listen little live long look love low machine made main make man many map mark may mean measure men might mile mind minute miss money moon more morning most mother mountain move much multiply music must my name near need never new next night no north note nothing notice noun now number object of off often old on once one only open or order other our out over own page paper part pass pattern people perhaps person picture piece place plain plan plane plant play point port pose possible pound power press problem produce product pull put question quick rain ran reach read ready real red rest right river road rock room round rule run"

// vocabulary is the list of words.
type vocabulary []string

func newVocabulary() vocabulary { return strings.Fields(words) }

// source makes text of random words, the same for the same seeds.
type source struct {
	vocabulary
	rnd *rand.Rand
}

func (v vocabulary) source(seed, stream uint64) source {
	return source{v, rand.New(rand.NewPCG(seed, stream))}
}

// append adds n words, each after a space: always the same n words, in an order
// of chance. So all prompts of n words have the same number of tokens, and hardly
// two the same beginning.
func (s source) append(b []byte, n int) []byte { return s.appendFirst(b, n, n) }

// appendFirst adds the first n of such an order of whole words.
func (s source) appendFirst(b []byte, n, whole int) []byte {
	order := make([]uint16, whole)
	for i := range order {
		order[i] = uint16(i % len(s.vocabulary))
	}
	s.rnd.Shuffle(whole, func(i, j int) { order[i], order[j] = order[j], order[i] })
	for _, w := range order[:n] {
		b = append(b, ' ')
		b = append(b, s.vocabulary[w]...)
	}
	return b
}
