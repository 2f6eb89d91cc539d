//! Selectors as JMS has them: what they match, and what is refused.

use super::super::message_headers::Steps;
use super::*;
use crate::topology::destination::Destination;
use crate::topology::encoding;

fn headers() -> MessageHeaders {
    let mut table = Table::new();
    table.push("colour", Value::LongString(Bytes::from_static(b"blue")));
    table.push("weight", Value::I32(12));
    table.push("price", Value::F64(2.5));
    table.push("open", Value::Bool(true));
    table.push("list", Value::Array(Vec::new()));
    MessageHeaders::new(Some(table))
}

fn selects(text: &str) -> bool {
    let found = parse(text.as_bytes()).unwrap_or_else(|| panic!("{text} cannot be read"));
    found.evaluate(&headers()) == Known::Bool(true)
}

#[test]
fn headers_are_compared_by_kind_and_value() {
    for (text, is) in [
        ("{'=',{'ident',<<\"colour\">>},<<\"blue\">>}.", true),
        ("{'=',{'ident',<<\"colour\">>},<<\"red\">>}.", false),
        ("{'<>',{'ident',<<\"colour\">>},<<\"red\">>}.", true),
        ("{'>',{'ident',<<\"weight\">>},11}.", true),
        ("{'>',{'ident',<<\"weight\">>},12}.", false),
        ("{'>=',{'ident',<<\"weight\">>},12.0}.", true),
        ("{'<',{'ident',<<\"price\">>},3}.", true),
        ("{'<=',{'ident',<<\"price\">>},2.4}.", false),
        ("{'ident',<<\"open\">>}.", true),
        ("{'not',{'ident',<<\"open\">>}}.", false),
        ("true.", true),
        ("false.", false),
        // A text is never a number, and comes behind all of them.
        ("{'=',{'ident',<<\"weight\">>},<<\"12\">>}.", false),
        ("{'>',{'ident',<<\"colour\">>},1000000}.", true),
    ] {
        assert_eq!(selects(text), is, "{text}");
    }
}

#[test]
fn what_is_not_there_is_unknown_and_not_false() {
    for (text, is) in [
        ("{'=',{'ident',<<\"none\">>},1}.", false),
        ("{'not',{'=',{'ident',<<\"none\">>},1}}.", false),
        ("{'is_null',{'ident',<<\"none\">>}}.", true),
        ("{'not_null',{'ident',<<\"none\">>}}.", false),
        ("{'is_null',{'ident',<<\"list\">>}}.", true),
        ("{'not_null',{'ident',<<\"colour\">>}}.", true),
        ("{'or',{'=',{'ident',<<\"none\">>},1},true}.", true),
        ("{'or',{'=',{'ident',<<\"none\">>},1},false}.", false),
        ("{'not',{'and',{'=',{'ident',<<\"none\">>},1},false}}.", true),
        ("{'not_in',{'ident',<<\"none\">>},[<<\"a\">>]}.", false),
        ("{'not_like',{'ident',<<\"none\">>},<<\"a\">>,no_escape}.", false),
    ] {
        assert_eq!(selects(text), is, "{text}");
    }
}

#[test]
fn lists_ranges_and_sums() {
    for (text, is) in [
        ("{'in',{'ident',<<\"colour\">>},[<<\"red\">>,<<\"blue\">>]}.", true),
        ("{'not_in',{'ident',<<\"colour\">>},[<<\"red\">>]}.", true),
        ("{'in',{'ident',<<\"weight\">>},[12.0]}.", false),
        ("{'between',{'ident',<<\"weight\">>},{'range',10,12}}.", true),
        ("{'not_between',{'ident',<<\"weight\">>},{'range',10,12}}.", false),
        ("{'between',{'ident',<<\"weight\">>},{'range',13,20}}.", false),
        ("{'=',{'+',{'ident',<<\"weight\">>},{'-',2}},10}.", true),
        ("{'=',{'*',{'ident',<<\"weight\">>},{'ident',<<\"price\">>}},30}.", true),
        ("{'=',{'/',{'ident',<<\"weight\">>},8},1.5}.", true),
        ("{'>',{'/',{'ident',<<\"weight\">>},0},1000}.", true),
        ("{'=',{'+',{'ident',<<\"colour\">>},1},1}.", false),
        ("{'>',{'*',9223372036854775807,2},0}.", false),
    ] {
        assert_eq!(selects(text), is, "{text}");
    }
}

#[test]
fn patterns_meet_whole_texts() {
    let like = |text: &str, pattern: &str, escape: &str| {
        let escape =
            if escape.is_empty() { Term::Atom(b"no_escape".to_vec()) } else { Term::Text(escape.to_owned().into()) };
        Pattern::of(pattern.as_bytes(), &escape).expect("a pattern").meets(text.as_bytes(), &Steps::default())
    };
    for (text, pattern, escape, is) in [
        ("blue", "b%", "", true),
        ("blue", "%u%", "", true),
        ("blue", "_lu_", "", true),
        ("blue", "lu", "", false),
        ("blue", "b_e", "", false),
        ("", "%", "", true),
        ("", "", "", true),
        ("", "_", "", false),
        ("aXbXc", "a%X_", "", true),
        ("aaab", "%aab", "", true),
        ("a.c", "a.c", "", true),
        ("abc", "a.c", "", false),
        ("100%", "100\\%", "\\", true),
        ("100x", "100\\%", "\\", false),
        ("a_b", "a!_b", "!", true),
        ("line\nend", "line%", "", false),
    ] {
        assert_eq!(like(text, pattern, escape), is, "{text:?} like {pattern:?}");
    }
    assert!(selects("{'like',{'ident',<<\"colour\">>},<<\"bl%\">>,no_escape}."));
    assert!(Pattern::of(b"a", &Term::Text(Bytes::from_static(b"ab"))).is_none(), "an escape is one character");
}

#[test]
fn what_cannot_be_evaluated_is_refused_when_it_is_bound() {
    let refused = |text: &'static str| {
        let mut table = Table::new();
        table.push(SELECTOR, Value::LongString(Bytes::from_static(text.as_bytes())));
        check(&table).is_err()
    };
    for text in [
        "",
        "{",
        "{'='}.",
        "{'=',1}.",
        "{'similar',1,2}.",
        "{ident,1}.",
        "maybe.",
        "{'in',1,2}.",
        "[1].",
        "{'=',1,2}. 3",
    ] {
        assert!(refused(text), "{text:?}");
    }
    assert!(!refused("{'=',1,2}."));
    let with_pattern = |bytes: usize| {
        let text = format!("{{'not',{{'like',{{'ident',<<\"a\">>}},<<\"{}\">>,no_escape}}}}.", "_".repeat(bytes));
        let mut table = Table::new();
        table.push(SELECTOR, Value::LongString(text.into()));
        check(&table)
    };
    assert!(with_pattern(PATTERN_BYTES_MAX).is_ok());
    assert!(with_pattern(PATTERN_BYTES_MAX + 1).is_err());
    let with = |text: String| {
        let mut table = Table::new();
        table.push(SELECTOR, Value::LongString(text.into()));
        check(&table).map_err(|refusal| refusal.code)
    };
    let listed = |count: usize| {
        // A tuple, the header and its name are three.
        let items = vec!["1"; count - 3].join(",");
        format!("{{'in',{{'ident',<<\"a\">>}},[{items}]}}.")
    };
    assert_eq!(with(listed(SELECTOR_TERMS_MAX)), Ok(()));
    assert_eq!(with(listed(SELECTOR_TERMS_MAX + 1)), Err(406));
    let blank = |bytes: usize| format!("true{}.", " ".repeat(bytes - 5));
    assert_eq!(with(blank(SELECTOR_BYTES_MAX)), Ok(()));
    assert_eq!(with(blank(SELECTOR_BYTES_MAX + 1)), Err(406));
    let mut table = Table::new();
    assert!(check(&table).is_ok(), "without one it is lawful, and selects nothing");
    table.push(SELECTOR, Value::I32(1));
    assert!(check(&table).is_err());
}

#[test]
fn bindings_select_each_for_itself() {
    let arguments = |text: &'static str| {
        let mut table = Table::new();
        table.push(SELECTOR, Value::LongString(Bytes::from_static(text.as_bytes())));
        encoding::table_bytes(&table)
    };
    let (heavy, red) =
        (arguments("{'>',{'ident',<<\"weight\">>},10}."), arguments("{'=',{ident,<<\"colour\">>},<<\"red\">>}."));
    let none = encoding::table_bytes(&Table::new());
    let mut exchange = SelectorTable::default();
    exchange.add(&heavy, Destination::queue(0));
    exchange.add(&heavy, Destination::queue(0));
    exchange.add(&red, Destination::queue(1));
    exchange.add(&none, Destination::queue(2));
    let found = |exchange: &SelectorTable| {
        let mut found = Vec::new();
        exchange.each(&headers(), &mut |destination| found.push(destination));
        found
    };
    assert_eq!(found(&exchange), [Destination::queue(0)]);
    exchange.remove(&heavy, Destination::queue(0));
    assert_eq!(found(&exchange), [Destination::queue(0)], "the second binding is there");
    exchange.remove(&heavy, Destination::queue(0));
    assert!(found(&exchange).is_empty());
}
