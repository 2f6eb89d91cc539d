//! Topic matching: a trie over the words of binding keys, with `*` for one word and `#` for any
//! number.
//!
//! Invariant: a match visits each trie node at most once, and its cost depends on the words of the
//! routing key and the wildcards on its way, not on the number of bindings. Where many wildcards
//! branch it ends once it has taken [`ROUTE_STEPS_MAX`] steps. It allocates nothing, unless more
//! than 8 words of the key stand behind a `#` that has something behind it.
//!
//! Words are numbered, so that a word of a routing key is hashed once and a step in the trie
//! compares two numbers. A word that is in no binding has no number and can only be met by a
//! wildcard. The empty key has no words; `a..b` has three, the middle one empty, which `*` matches.

use hashbrown::HashTable;
use smallvec::SmallVec;

use super::destination::{Destination, Destinations};
use super::hash;

/// RabbitMQ 4.3's limit: each further `#` would multiply the work of a match.
pub const TOPIC_HASH_WILDCARDS_MAX: usize = 2;
/// A key has at most 255 bytes, so at most 256 words.
const WORDS_MAX: usize = 256;
/// So many steps may all keys of one message take together, in all exchanges on its way. A step is
/// a tenth of a microsecond where it misses the caches. A key of ten words among a million bindings
/// takes some tens of them.
pub(super) const ROUTE_STEPS_MAX: usize = 1 << 18;
/// To see whether a word of the key stands behind a place costs so much less than a step.
const STANDS_A_STEP: usize = 16;
/// No node, no word.
const NONE: u32 = u32::MAX;
const ROOT: u32 = 0;

#[derive(Debug)]
struct Node {
    parent: u32,
    /// The word that leads here from the parent; `NONE` for a wildcard and the root.
    word: u32,
    star: u32,
    hash: u32,
    /// Word children; with `star` and `hash` it decides whether the node is still needed.
    word_children: u32,
    here: Destinations,
}

impl Node {
    fn new(parent: u32, word: u32) -> Self {
        Self { parent, word, star: NONE, hash: NONE, word_children: 0, here: Destinations::default() }
    }

    fn is_needless(&self) -> bool {
        self.word_children == 0 && self.star == NONE && self.hash == NONE && self.here.is_empty()
    }

    fn is_leaf(&self) -> bool {
        self.word_children == 0 && self.star == NONE && self.hash == NONE
    }
}

#[derive(Debug)]
struct Word {
    text: Box<[u8]>,
    uses: u32,
}

/// The bindings of one topic exchange.
#[derive(Debug)]
pub(super) struct TopicTrie {
    nodes: slab::Slab<Node>,
    words: slab::Slab<Word>,
    /// Text -> word.
    word_index: HashTable<u32>,
    /// (parent, word) -> node.
    edges: HashTable<u32>,
}

impl Default for TopicTrie {
    fn default() -> Self {
        let mut nodes = slab::Slab::new();
        assert_eq!(nodes.insert(Node::new(NONE, NONE)), ROOT as usize, "an empty slab starts at 0");
        Self { nodes, words: slab::Slab::new(), word_index: HashTable::new(), edges: HashTable::new() }
    }
}

/// The words of a key.
pub(super) fn words(key: &[u8]) -> impl Iterator<Item = &[u8]> {
    // `split` makes one empty word of an empty key, which has none.
    key.split(|b| *b == b'.').take(if key.is_empty() { 0 } else { WORDS_MAX })
}

/// How many `#` a binding key has.
pub(super) fn hash_wildcards(key: &[u8]) -> usize {
    words(key).filter(|word| *word == b"#").count()
}

fn edge_hash(parent: u32, word: u32) -> u64 {
    hash::of_number(u64::from(parent) << 32 | u64::from(word))
}

impl TopicTrie {
    /// Adds one binding.
    pub(super) fn add(&mut self, key: &[u8], destination: Destination) {
        let mut at = ROOT;
        for word in words(key) {
            at = self.child_or_new(at, word);
        }
        self.nodes[at as usize].here.add(destination);
    }

    /// Takes one binding away; it must be there. Nodes and words that nobody needs any more go too.
    pub(super) fn remove(&mut self, key: &[u8], destination: Destination) {
        let mut at = ROOT;
        for word in words(key) {
            at = self.child(at, word).expect("only what was added is removed");
        }
        self.nodes[at as usize].here.remove(destination);
        while at != ROOT && self.nodes[at as usize].is_needless() {
            at = self.remove_node(at);
        }
    }

    /// Calls `visit` with the destinations of every binding key that matches; a queue bound with
    /// several matching keys comes several times. Adds how many steps that took to `steps`. Where
    /// they become more than [`ROUTE_STEPS_MAX`] it ends early, and what it found is not all.
    pub(super) fn each(&self, key: &[u8], steps: &mut usize, visit: &mut impl FnMut(Destination)) {
        let mut numbers: SmallVec<[u32; WORDS_MAX]> = SmallVec::new();
        for word in words(key) {
            numbers.push(self.word_number(word).unwrap_or(NONE));
        }
        let (stands, knows_stands) = (SmallVec::new(), false);
        let mut walk = Match { trie: self, words: &numbers, stands, knows_stands, steps: *steps, visit };
        walk.follow(ROOT, 0);
        *steps = walk.steps;
    }

    fn child(&self, parent: u32, word: &[u8]) -> Option<u32> {
        let node = &self.nodes[parent as usize];
        let child = match word {
            b"*" => node.star,
            b"#" => node.hash,
            text => self.word_number(text).and_then(|number| self.word_child(parent, number)).unwrap_or(NONE),
        };
        (child != NONE).then_some(child)
    }

    fn child_or_new(&mut self, parent: u32, word: &[u8]) -> u32 {
        if let Some(child) = self.child(parent, word) {
            return child;
        }
        let number = match word {
            b"*" | b"#" => NONE,
            text => self.use_word(text),
        };
        let child = self.nodes.insert(Node::new(parent, number));
        let child = u32::try_from(child).expect("the number of bindings is limited");
        match word {
            b"*" => self.nodes[parent as usize].star = child,
            b"#" => self.nodes[parent as usize].hash = child,
            _ => {
                self.nodes[parent as usize].word_children += 1;
                let nodes = &self.nodes;
                self.edges.insert_unique(edge_hash(parent, number), child, |&c| {
                    let node = &nodes[c as usize];
                    edge_hash(node.parent, node.word)
                });
            }
        }
        child
    }

    /// Removes a needless node and returns its parent.
    fn remove_node(&mut self, at: u32) -> u32 {
        let node = self.nodes.remove(at as usize);
        let parent = &mut self.nodes[node.parent as usize];
        if node.word != NONE {
            parent.word_children -= 1;
            let edge = self.edges.find_entry(edge_hash(node.parent, node.word), |&c| c == at);
            edge.map_err(|_| ()).expect("every node reached by a word has its edge").remove();
            self.release_word(node.word);
        } else if parent.star == at {
            parent.star = NONE;
        } else {
            assert_eq!(parent.hash, at, "a node without a word is a wildcard of its parent");
            parent.hash = NONE;
        }
        node.parent
    }

    fn word_number(&self, text: &[u8]) -> Option<u32> {
        self.word_index.find(hash::of_name(0, text), |&w| &*self.words[w as usize].text == text).copied()
    }

    fn word_child(&self, parent: u32, word: u32) -> Option<u32> {
        let is_it = |&c: &u32| {
            let node = &self.nodes[c as usize];
            node.parent == parent && node.word == word
        };
        self.edges.find(edge_hash(parent, word), is_it).copied()
    }

    fn use_word(&mut self, text: &[u8]) -> u32 {
        if let Some(number) = self.word_number(text) {
            self.words[number as usize].uses += 1;
            return number;
        }
        let number = self.words.insert(Word { text: text.into(), uses: 1 });
        let number = u32::try_from(number).expect("the number of bindings is limited");
        let words = &self.words;
        self.word_index.insert_unique(hash::of_name(0, text), number, |&w| hash::of_name(0, &words[w as usize].text));
        number
    }

    fn release_word(&mut self, number: u32) {
        let word = &mut self.words[number as usize];
        word.uses -= 1;
        if word.uses == 0 {
            let hash = hash::of_name(0, &word.text);
            let entry = self.word_index.find_entry(hash, |&w| w == number);
            entry.map_err(|_| ()).expect("every word is in the index").remove();
            self.words.remove(number as usize);
        }
    }

    /// Nodes, words and edges: what the trie holds for its bindings.
    #[cfg(test)]
    fn sizes(&self) -> (usize, usize, usize) {
        (self.nodes.len(), self.words.len(), self.edges.len())
    }
}

/// Places between the words of a routing key, from before the first to behind the last.
#[derive(Clone, Copy, Debug, Default)]
struct Positions([u64; WORDS_MAX / 64 + 1]);

impl Positions {
    fn add(&mut self, position: usize) {
        self.0[position / 64] |= 1 << (position % 64);
    }

    /// From `first` to `last`, both included.
    fn between(first: usize, last: usize) -> Self {
        let mut all = Self::default();
        (first..=last).for_each(|position| all.add(position));
        all
    }

    fn contains(&self, position: usize) -> bool {
        self.0[position / 64] >> (position % 64) & 1 == 1
    }

    fn first(&self) -> Option<usize> {
        let at = self.0.iter().position(|bits| *bits != 0)?;
        Some(at * 64 + self.0[at].trailing_zeros() as usize)
    }

    fn without(mut self, position: usize) -> Self {
        self.0[position / 64] &= !(1 << (position % 64));
        self
    }

    /// Those that are in both, each moved behind the word that follows it; nothing if there are
    /// none.
    fn behind_words(&self, words: &Self) -> Option<Self> {
        let (mut behind, mut carry) = (Self::default(), 0);
        for (at, bits) in behind.0.iter_mut().enumerate() {
            let both = self.0[at] & words.0[at];
            *bits = both << 1 | carry;
            carry = both >> 63;
        }
        behind.first().map(|_| behind)
    }
}

/// One walk through the trie.
struct Match<'a, V> {
    trie: &'a TopicTrie,
    words: &'a [u32],
    /// Where each word stands that is in some binding; made when the first `#` with something
    /// behind it is met.
    stands: SmallVec<[(u32, Positions); 8]>,
    knows_stands: bool,
    /// Nodes and edges that were looked at, with those of the keys before.
    steps: usize,
    visit: &'a mut V,
}

impl<V: FnMut(Destination)> Match<'_, V> {
    /// Follows everything below `at` that matches the words from `position` on. No `#` is on the
    /// way here.
    fn follow(&mut self, at: u32, position: usize) {
        self.steps += 1;
        let node = &self.trie.nodes[at as usize];
        if position == self.words.len() {
            node.here.each(self.visit);
        } else {
            let word = self.words[position];
            if word != NONE
                && node.word_children > 0
                && let Some(child) = self.trie.word_child(at, word)
            {
                self.follow(child, position + 1);
            }
            // Without a wildcard there is one way, and it is short.
            if node.star != NONE && self.may_go_on() {
                self.follow(node.star, position + 1);
            }
        }
        if node.hash != NONE {
            self.hash(node.hash, position);
        }
    }

    /// Follows everything below the `#` at `at`, which takes any number of words from `position`
    /// on.
    fn hash(&mut self, at: u32, position: usize) {
        let node = &self.trie.nodes[at as usize];
        if node.is_leaf() {
            self.steps += 1;
            // The common tail `#`: whatever is left matches.
            node.here.each(self.visit);
            return;
        }
        if !std::mem::replace(&mut self.knows_stands, true) {
            self.find_stands();
        }
        self.follow_all(at, &Positions::between(position, self.words.len()));
    }

    /// Follows everything below `at` that matches the words from any of `positions` on: all of them
    /// at once, so that a node is visited once, however many ways a `#` above it leaves to come
    /// there.
    fn follow_all(&mut self, at: u32, positions: &Positions) {
        if !self.may_go_on() {
            return;
        }
        self.steps += 1;
        let (node, end) = (&self.trie.nodes[at as usize], self.words.len());
        if positions.contains(end) {
            node.here.each(self.visit);
        }
        if node.word_children > 0 {
            self.steps += self.stands.len() / STANDS_A_STEP;
            for known in 0..self.stands.len() {
                let (word, stands) = &self.stands[known];
                let Some(behind) = positions.behind_words(stands) else { continue };
                self.steps += 1;
                if let Some(child) = self.trie.word_child(at, *word) {
                    self.follow_all(child, &behind);
                }
            }
        }
        if node.star != NONE {
            let before_words = positions.without(end);
            if let Some(behind) = before_words.behind_words(&before_words) {
                self.follow_all(node.star, &behind);
            }
        }
        if node.hash != NONE {
            self.hash(node.hash, positions.first().expect("nobody comes here from nowhere"));
        }
    }

    fn may_go_on(&self) -> bool {
        self.steps <= ROUTE_STEPS_MAX
    }

    fn find_stands(&mut self) {
        for (position, word) in self.words.iter().enumerate().filter(|(_, word)| **word != NONE) {
            match self.stands.iter_mut().find(|(known, _)| known == word) {
                Some((_, stands)) => stands.add(position),
                None => self.stands.push((*word, Positions::between(position, position))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(bindings: &[&str], key: &str) -> Vec<u32> {
        let mut trie = TopicTrie::default();
        for (at, binding) in bindings.iter().enumerate() {
            trie.add(binding.as_bytes(), Destination::queue(at));
        }
        let mut found = Vec::new();
        trie.each(key.as_bytes(), &mut 0, &mut |d| found.push(d.number()));
        found.sort_unstable();
        found
    }

    #[test]
    fn hash_matches_zero_words_and_star_exactly_one() {
        assert_eq!(matches(&["#", "*", "", "a", "a.#", "#.a", "*.#"], ""), [0, 2]);
        assert_eq!(matches(&["#", "*", "", "a", "a.#", "#.a", "*.#"], "a"), [0, 1, 3, 4, 5, 6]);
        assert_eq!(matches(&["a.*.b", "a.b", "a.#.b", "*.*.*"], "a..b"), [0, 2, 3]);
        assert_eq!(matches(&["*", "*.*", "#.#"], "."), [1, 2]);
    }

    #[test]
    fn a_wildcard_in_a_routing_key_is_an_ordinary_word() {
        assert_eq!(matches(&["a.b", "a.*", "a.#"], "a.#"), [1, 2]);
        assert_eq!(matches(&["a.b", "a.*", "a.#"], "a.*"), [1, 2]);
    }

    #[test]
    fn two_hashes_over_the_longest_key_visit_each_binding_once() {
        let key = vec!["a"; 128].join(".");
        assert_eq!(matches(&["#.a.#", "#.a.a.#", "#.#", "#.a", "#.b.#"], &key), [0, 1, 2, 3]);
    }

    #[test]
    fn behind_a_hash_each_node_is_visited_once() {
        // Thousands of bindings that share their words, and keys in which every word may stand for
        // every other.
        let mut trie = TopicTrie::default();
        let mut bindings = Vec::new();
        for number in 0..1 << 10 {
            let middle: Vec<&str> = (0..10).map(|bit| if number >> bit & 1 == 1 { "a" } else { "*" }).collect();
            bindings.push(format!("#.{}.#.z", middle.join(".")));
        }
        for (at, binding) in bindings.iter().enumerate() {
            trie.add(binding.as_bytes(), Destination::queue(at));
        }
        let key = format!("{}.z", vec!["a"; 100].join("."));
        let (mut found, mut steps) = (0, 0);
        trie.each(key.as_bytes(), &mut steps, &mut |_| found += 1);
        assert_eq!(found, bindings.len());
        let nodes = trie.sizes().0;
        assert!(steps <= 3 * nodes, "{steps} steps through {nodes} nodes");
    }

    #[test]
    fn a_walk_that_branches_everywhere_ends_soon_after_its_steps_are_used_up() {
        let branches = |bits: u32, tail: &str| {
            let mut trie = TopicTrie::default();
            for number in 0..1_usize << bits {
                let words = (0..bits).map(|bit| if number >> bit & 1 == 1 { "a" } else { "*" });
                let key = format!("{}.{tail}{number}", words.collect::<Vec<_>>().join("."));
                trie.add(key.as_bytes(), Destination::queue(number));
            }
            trie
        };
        let long: Vec<String> = (0..120).map(|n| if n % 2 == 0 { "a".into() } else { format!("z{n}") }).collect();
        for (trie, key) in [
            (branches(12, "#.a.#.z"), ["a"; 100].join(".")),
            (branches(12, "#.*.#.y"), long.join(".")),
            (branches(12, "z"), ["a"; 13].join(".")),
        ] {
            let (mut steps, mut walks) = (0, 0);
            while steps <= ROUTE_STEPS_MAX {
                trie.each(key.as_bytes(), &mut steps, &mut |_| {});
                walks += 1;
            }
            assert!(walks > 1, "one key of this trie is not too much");
            for _ in 0..1000 {
                let before = steps;
                trie.each(key.as_bytes(), &mut steps, &mut |_| {});
                assert!(steps - before <= WORDS_MAX, "{} steps more", steps - before);
            }
            assert!(steps <= ROUTE_STEPS_MAX + 2000 * WORDS_MAX);
        }
    }

    proptest::proptest! {
        /// Against the rule itself: a `*` is one word, a `#` any number of them.
        #[test]
        fn a_walk_finds_what_the_rule_of_topics_says(
            bindings in proptest::collection::vec("[ab*#](\\.[ab*#]){0,5}", 1..12),
            key in "([abc](\\.[abc]){0,7})?",
        ) {
            fn met(binding: &[&[u8]], key: &[&[u8]]) -> bool {
                let Some((word, rest)) = binding.split_first() else { return key.is_empty() };
                match (*word, key.split_first()) {
                    (b"#", None) => met(rest, key),
                    (b"#", Some((_, behind))) => met(rest, key) || met(binding, behind),
                    (_, None) => false,
                    (_, Some((first, behind))) => (*word == b"*" || word == first) && met(rest, behind),
                }
            }
            let key_words: Vec<&[u8]> = words(key.as_bytes()).collect();
            let is_met = |binding: &String| met(&words(binding.as_bytes()).collect::<Vec<_>>(), &key_words);
            let wanted: Vec<u32> = (0..).zip(&bindings).filter(|(_, binding)| is_met(binding)).map(|(at, _)| at).collect();
            let names: Vec<&str> = bindings.iter().map(String::as_str).collect();
            let found = matches(&names, &key);
            proptest::prop_assert_eq!(found, wanted);
        }
    }

    #[test]
    fn what_is_added_and_removed_leaves_nothing_behind() {
        let mut trie = TopicTrie::default();
        let long = "a word that does not fit into its entry";
        let keys = ["a.b.c", "a.#", "*.b", "", "a.b.c", "#.x.#", "a.c", "a.d", "a.b.e", long, "a.c.c"];
        for (at, key) in keys.iter().enumerate() {
            trie.add(key.as_bytes(), Destination::queue(at));
        }
        for (at, key) in keys.iter().enumerate() {
            trie.remove(key.as_bytes(), Destination::queue(at));
            for (other, key) in keys.iter().enumerate().skip(at + 1) {
                let mut found = false;
                trie.each(key.as_bytes(), &mut 0, &mut |d| found |= d == Destination::queue(other));
                assert!(found, "{key} is still there after {at} went");
            }
        }
        assert_eq!(trie.sizes(), (1, 0, 0));
    }
}
