//! A JSON document whose every value knows its line, so that what is wrong with it can be said with
//! line and field.
//!
//! Invariant: a field that nobody asked for is an error, so a misspelled one is named and never
//! ignored.

use crate::config::nearest;
use json_once::sentence;
use serde_json::value::RawValue;
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

/// What is wrong with a document, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrongDefinitions {
    /// The line, from 1; 0 in a document of one line, where it would tell nobody anything.
    pub line: usize,
    /// The field, as `users[2].password_hash`; empty for the document as a whole.
    pub field: String,
    /// The rest of the sentence. It never repeats a value that may be a secret.
    pub text: String,
}

impl fmt::Display for WrongDefinitions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line > 0 {
            write!(f, "line {}: ", self.line)?;
        }
        match self.field.as_str() {
            "" => f.write_str(&self.text),
            field => write!(f, "{field}: {}", self.text),
        }
    }
}

impl std::error::Error for WrongDefinitions {}

/// So many wrong things are told one by one.
const TOLD_MAX: usize = 20;

impl WrongDefinitions {
    /// All of these as one. Errors: there is any.
    pub(super) fn all(wrong: Vec<WrongDefinitions>) -> Result<(), WrongDefinitions> {
        let more = wrong.len().saturating_sub(TOLD_MAX);
        let mut wrong = wrong.into_iter();
        let Some(mut first) = wrong.next() else { return Ok(()) };
        for other in wrong.take(TOLD_MAX - 1) {
            first.text += &format!("; {other}");
        }
        if more > 0 {
            first.text += &format!("; and {more} more");
        }
        Err(first)
    }
}

/// Where the lines of a document end, found once for all that is wrong with it.
#[derive(Debug)]
struct Lines {
    /// Where the document stands in memory.
    begin: usize,
    ends: OnceCell<Vec<usize>>,
}

impl Lines {
    fn of(document: &str) -> Lines {
        Lines { begin: document.as_ptr() as usize, ends: OnceCell::new() }
    }

    /// The line of a part of the document, from 1; 0 in a document of one line.
    fn line_of(&self, document: &str, part: &str) -> usize {
        let text = document.trim_end();
        let ends = self
            .ends
            .get_or_init(|| text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at).collect());
        // The part is a slice of the document, so the distance between the two is where it stands.
        let offset = (part.as_ptr() as usize).saturating_sub(self.begin);
        if ends.is_empty() { 0 } else { ends.partition_point(|end| *end < offset) + 1 }
    }
}

/// So much is shown of a number that is too long.
const DIGITS_SHOWN: usize = 40;

/// A value of a document, not yet looked at.
#[derive(Clone, Debug)]
pub(super) struct Node<'a> {
    source: &'a str,
    lines: Rc<Lines>,
    raw: &'a RawValue,
    path: String,
}

fn is_one_line(document: &str) -> bool {
    !document.trim_end().contains('\n')
}

impl<'a> Node<'a> {
    /// The document itself. Errors: it is no JSON.
    pub(super) fn document(source: &'a str) -> Result<Node<'a>, WrongDefinitions> {
        // A raw value is not looked into: half a surrogate, or a number beyond any, would be found
        // only where it is used.
        let whole = json_once::check(source.as_bytes());
        let raw = whole.and_then(|()| serde_json::from_str::<&RawValue>(source)).map_err(|error| WrongDefinitions {
            line: if is_one_line(source) { 0 } else { error.line() },
            field: String::new(),
            text: match error.is_data() {
                true => sentence(&error),
                false => format!("column {}: not JSON: {}", error.column(), sentence(&error)),
            },
        })?;
        Ok(Node { source, lines: Rc::new(Lines::of(source)), raw, path: String::new() })
    }

    /// Something is wrong here.
    pub(super) fn wrong(&self, text: impl fmt::Display) -> WrongDefinitions {
        let line = self.lines.line_of(self.source, self.raw.get());
        WrongDefinitions { line, field: self.path.clone(), text: text.to_string() }
    }

    fn child(&self, raw: &'a RawValue, name: impl fmt::Display) -> Node<'a> {
        let path = match self.path.as_str() {
            "" => name.to_string(),
            path => format!("{path}.{name}"),
        };
        Node { source: self.source, lines: self.lines.clone(), raw, path }
    }

    /// The value, as JSON has it.
    pub(super) fn value(&self) -> serde_json::Value {
        json_once::value(self.raw.get().as_bytes()).expect("the document was checked as a whole")
    }

    /// The same. Errors: a whole number in it would become another one.
    pub(super) fn exact(&self) -> Result<serde_json::Value, WrongDefinitions> {
        match json_once::oversized(self.raw.get().as_bytes()) {
            Some(number) => {
                let digits: String = number.chars().take(DIGITS_SHOWN).collect();
                let more = if digits.len() < number.len() { "..." } else { "" };
                Err(self.wrong(format!("{digits}{more}: a whole number has at most 64 bits")))
            }
            None => Ok(self.value()),
        }
    }

    /// Whether it is a list or an object.
    pub(super) fn is_composed(&self) -> bool {
        self.raw.get().starts_with(['[', '{'])
    }

    /// Its fields. Errors: it is no object.
    pub(super) fn fields(&self) -> Result<Fields<'a>, WrongDefinitions> {
        if !self.raw.get().starts_with('{') {
            return Err(self.wrong("an object is expected"));
        }
        let pairs: Pairs<'a> = serde_json::from_str(self.raw.get()).map_err(|_| self.wrong("an object is expected"))?;
        let mut fields = BTreeMap::new();
        for (name, raw) in pairs.0 {
            let node = self.child(raw, &name);
            fields.insert(name, node);
        }
        Ok(Fields::new(self.clone(), fields))
    }

    /// The fields of an object that RabbitMQ keeps as a list of properties. `rabbitmqctl export_definitions` of 3.10 writes
    /// such ones as they are, `[["max-queues",50]]`, and none as `[]`. Errors: it is neither, or a field comes twice.
    pub(super) fn properties(&self) -> Result<Fields<'a>, WrongDefinitions> {
        if !self.raw.get().starts_with('[') {
            return self.fields();
        }
        let mut fields = BTreeMap::new();
        for pair in self.items()? {
            let Ok([name, value]) = <[Node<'a>; 2]>::try_from(pair.items()?) else {
                return Err(pair.wrong("a name and a value are expected"));
            };
            let name = name.text()?;
            let value = self.child(value.raw, &name);
            if let Some(twice) = fields.insert(name, value) {
                return Err(twice.wrong("the field comes twice"));
            }
        }
        Ok(Fields::new(self.clone(), fields))
    }

    /// Its items. Errors: it is no list.
    pub(super) fn items(&self) -> Result<Vec<Node<'a>>, WrongDefinitions> {
        if !self.raw.get().starts_with('[') {
            return Err(self.wrong("a list is expected"));
        }
        let items: Vec<&'a RawValue> =
            serde_json::from_str(self.raw.get()).map_err(|_| self.wrong("a list is expected"))?;
        let of = |(at, raw)| Node {
            source: self.source,
            lines: self.lines.clone(),
            raw,
            path: format!("{}[{at}]", self.path),
        };
        Ok(items.into_iter().enumerate().map(of).collect())
    }

    /// Its text. Errors: it is no text.
    pub(super) fn text(&self) -> Result<String, WrongDefinitions> {
        match self.value() {
            serde_json::Value::String(text) => Ok(text),
            _ => Err(self.wrong("a text is expected")),
        }
    }

    /// Its whole number. Errors: it is none.
    pub(super) fn integer(&self) -> Result<i64, WrongDefinitions> {
        self.value().as_i64().ok_or_else(|| self.wrong("a whole number is expected"))
    }

    /// Its truth. Errors: it has none.
    pub(super) fn flag(&self) -> Result<bool, WrongDefinitions> {
        self.value().as_bool().ok_or_else(|| self.wrong("true or false is expected"))
    }
}

/// The fields of an object in the order of the document, repeats included.
struct Pairs<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> serde::Deserialize<'de> for Pairs<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor<'a>(std::marker::PhantomData<&'a ()>);
        impl<'de: 'a, 'a> serde::de::Visitor<'de> for Visitor<'a> {
            type Value = Pairs<'a>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Pairs<'a>, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry::<String, &'a RawValue>()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Visitor(std::marker::PhantomData))
    }
}

/// The fields of an object that were not asked for yet.
#[derive(Clone, Debug)]
pub(super) struct Fields<'a> {
    owner: Node<'a>,
    fields: BTreeMap<String, Node<'a>>,
    /// The names that were asked for: one of them is what a misspelled field was meant to be.
    asked: Vec<&'static str>,
}

impl<'a> Fields<'a> {
    fn new(owner: Node<'a>, fields: BTreeMap<String, Node<'a>>) -> Fields<'a> {
        Fields { owner, fields, asked: Vec::new() }
    }

    /// Takes a field that may be missing.
    pub(super) fn take(&mut self, name: &'static str) -> Option<Node<'a>> {
        self.asked.push(name);
        self.fields.remove(name).filter(|node| node.raw.get() != "null")
    }

    /// Takes a field. Errors: it is missing, or misspelled.
    pub(super) fn need(&mut self, name: &'static str) -> Result<Node<'a>, WrongDefinitions> {
        self.take(name).ok_or_else(|| self.lacks(&[name]))
    }

    /// Takes a flag that may be missing. Errors: it is neither true nor false.
    pub(super) fn flag(&mut self, name: &'static str, default: bool) -> Result<bool, WrongDefinitions> {
        self.take(name).map_or(Ok(default), |node| node.flag())
    }

    /// None of these fields is there, the first of which is what is usual: either one of them is misspelled, or that
    /// one is missing.
    pub(super) fn lacks(&self, names: &[&'static str]) -> WrongDefinitions {
        let misspelled = self.fields.iter().find(|(name, _)| nearest(name, names.iter().copied()).is_some());
        match misspelled {
            Some((name, node)) => node.wrong(unknown("field", name, names)),
            None => self.owner.wrong(format!("the field \"{}\" is missing", names[0])),
        }
    }

    /// All that are left.
    pub(super) fn rest(self) -> impl Iterator<Item = (String, Node<'a>)> {
        self.fields.into_iter()
    }

    /// Errors: a field is left that nobody asked for.
    pub(super) fn end(self) -> Result<(), WrongDefinitions> {
        match self.fields.into_iter().next() {
            None => Ok(()),
            Some((name, node)) => Err(node.wrong(unknown("field", &name, &self.asked))),
        }
    }

    /// The same of the parts of a document, where texts may be left.
    pub(super) fn end_of_parts(self) -> Result<(), WrongDefinitions> {
        match self.fields.into_iter().find(|(_, node)| !node.raw.get().starts_with('"')) {
            None => Ok(()),
            Some((name, node)) => Err(node.wrong(unknown("part", &name, &self.asked))),
        }
    }
}

/// That nobody knows it, and which of the known ones was probably meant.
fn unknown(what: &str, name: &str, known: &[&'static str]) -> String {
    let meant = nearest(name, known.iter().copied());
    let hint = meant.map_or_else(String::new, |near| format!("; did you mean {near}?"));
    format!("this {what} is not known here{hint}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_named_by_line_and_field() {
        let source = "{\n \"users\": [\n  {\"name\": \"a\"},\n  {\"name\":\n   7, \"x\": 1}\n ]\n}";
        let mut top = Node::document(source).expect("it is JSON").fields().expect("an object");
        let users = top.need("users").expect("it is there").items().expect("a list");
        top.end().expect("nothing is left");
        let mut first = users[0].fields().expect("an object");
        assert_eq!(first.need("name").expect("it is there").text().as_deref(), Ok("a"));
        assert_eq!(
            first.need("tags").expect_err("it is missing").to_string(),
            "line 3: users[0]: the field \"tags\" is missing"
        );
        let mut second = users[1].fields().expect("an object");
        assert_eq!(
            second.need("name").expect("it is there").text().expect_err("a number").to_string(),
            "line 5: users[1].name: a text is expected"
        );
        assert_eq!(second.end().expect_err("x").to_string(), "line 5: users[1].x: this field is not known here");
    }

    #[test]
    fn a_misspelled_field_is_named_with_the_one_that_was_meant_and_not_as_one_that_is_missing() {
        let source = "{\"user\": [],\n \"users\": [{\"nmae\": \"a\", \"tagz\": [], \"colour\": 1}]}";
        let mut top = Node::document(source).expect("it is JSON").fields().expect("an object");
        let users = top.need("users").expect("it is there").items().expect("a list");
        let why = top.end_of_parts().expect_err("user").to_string();
        assert_eq!(why, "line 1: user: this part is not known here; did you mean users?");
        let left = |source: &'static str| {
            Node::document(source).expect("it is JSON").fields().expect("an object").end_of_parts()
        };
        assert_eq!(left(r#"{"explanation": "of texts nothing is lost"}"#), Ok(()));
        for never in ["true", "null", "5", "{}", "[]"] {
            let source = format!(r#"{{"nonsense": {never}}}"#);
            let wrong = Node::document(&source).expect("it is JSON").fields().expect("an object").end_of_parts();
            assert_eq!(
                wrong.map_err(|wrong| wrong.to_string()),
                Err("nonsense: this part is not known here".to_owned())
            );
        }
        let mut fields = users[0].fields().expect("an object");
        let why = fields.need("name").expect_err("it is misspelled").to_string();
        assert_eq!(why, "line 2: users[0].nmae: this field is not known here; did you mean name?");
        assert_eq!(fields.lacks(&["id", "tags"]).field, "users[0].tagz", "either of two was meant");
        let why = fields.need("password").expect_err("nothing is like it").to_string();
        assert_eq!(why, "line 2: users[0]: the field \"password\" is missing");
        let mut fields = users[0].fields().expect("an object");
        assert!(fields.take("tags").is_none(), "it may be missing");
        fields.fields.remove("nmae");
        fields.fields.remove("colour");
        let why = fields.end().expect_err("tagz").to_string();
        assert_eq!(why, "line 2: users[0].tagz: this field is not known here; did you mean tags?");
    }

    #[test]
    fn what_is_no_json_is_named_by_line() {
        let error = Node::document("{\n\"a\": ,\n}").expect_err("no JSON");
        assert_eq!((error.line, error.field.as_str()), (2, ""));
        for never in [r#"{"a": "\ud800"}"#, r#"[1e999]"#, r#"{"\udfff": 1}"#] {
            assert!(
                Node::document(never).is_err(),
                "{never}: what cannot be a value is refused before anybody looks at it"
            );
        }
        let twice = Node::document("{\"a\": 1,\n\"a\": 2}").expect_err("twice");
        assert_eq!(twice.to_string(), "line 2: the field \"a\" comes twice");
        let twice = Node::document("{\"b\": [{\"a\": 1, \"a\": 2}]}").expect_err("twice");
        assert_eq!(twice.to_string(), "the field \"a\" comes twice", "of one line, in a value");
        assert!(Node::document("7").expect("JSON").fields().is_err());
    }
}
