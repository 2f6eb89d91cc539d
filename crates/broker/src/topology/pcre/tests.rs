//! Patterns as PCRE reads them, and what is refused.

use super::super::pattern::Pattern;

fn means(pattern: &str, found: &[&str], not_found: &[&str]) {
    let compiled = Pattern::new(pattern).unwrap_or_else(|wrong| panic!("{pattern}: {wrong}"));
    found.iter().for_each(|name| assert!(compiled.matches(name.as_bytes()), "{pattern} in {name:?}"));
    not_found.iter().for_each(|name| assert!(!compiled.matches(name.as_bytes()), "{pattern} in {name:?}"));
}

/// What PCRE says of these was asked of Erlang's `re`.
#[test]
fn classes_mean_what_pcre_means() {
    for (pattern, found, not_found) in [
        (r"^[^a&&b]+$", &["c", "-", "["][..], &["aab", "a", "b", "&", "c&"][..]),
        (r"^[a&&b]+$", &["aab", "&", "a&&b"], &["c", ""]),
        (r"^[+--]+$", &["+", ",", "-", "+-"], &[".", "a"]),
        (r"^[a~~b]+$", &["a~b", "~"], &["c"]),
        (r"^[[a]+$", &["[a", "a"], &["]", "b"]),
        (r"^[a[b]]+$", &["a]", "b]", "[]]"], &["a", "ab"]),
        (r"^[]a]+$", &["]a"], &["[", "b"]),
        (r"^[^]a]+$", &["b["], &["]", "a"]),
        (r"^[a-]+$", &["a-"], &["b"]),
        (r"^[\w-]+$", &["a-b_"], &["."]),
        (r"^[\w-z]+$", &["a-z"], &["."]),
        (r"^[a-c-e]+$", &["b-e"], &["d"]),
        (r"^[[:alpha:]&&[:digit:]]+$", &["a1&"], &["a]"]),
        (r"^[[:alnum:]_.-]+$", &["a.b-c_1"], &["a b"]),
        (r"^[[:^alpha:]]+$", &["1-"], &["a"]),
        (r"^[\]\[]+$", &["[]"], &["a"]),
        (r"^[\x41-\103]+$", &["ABC"], &["D"]),
        (r"^[(?R)]+$", &["(?R)"], &["x"]),
        (r"(?i)^[^a]+$", &["b"], &["a", "A"]),
        (r"(?i)^[a-c]+$", &["aBC"], &["d"]),
        (r"(?x) ^ [a b] $", &["a", " "], &["c"]),
        (r"^[ä]+$", &["ä"], &["a"]),
    ] {
        means(pattern, found, not_found);
    }
}

#[test]
fn groups_remember_what_they_found_only_where_somebody_asks_for_it() {
    for (text, translated) in [
        ("^(a|b)?(?<n>c)$", "^(?:a|b)?(?:c)$"),
        ("^(?P<n>c)(?'m'd)(?=(e))", "^(?:c)(?:d)(?=(?:e))"),
        (r"^(a)\1$", r"^(a)\1$"),
        ("^(a)?(?(1)b|c)$", "^(a)?(?(1)b|c)$"),
    ] {
        assert_eq!(super::translate(text).as_deref(), Ok(translated));
    }
    assert!(Pattern::new("(?<n>a)(?P<n>b)").is_err(), "as in PCRE");
    let many = format!("^{}_1$", "(a|b)?".repeat(600));
    means(&many, &["abab_1", "_1"], &["abc_1"]);
}

#[test]
fn what_stands_outside_of_classes_means_what_pcre_means() {
    for (pattern, found, not_found) in [
        (r"^\<a$", &["<a"][..], &["a"][..]),
        (r"^a\>$", &["a>"], &["a"]),
        (r"^\h+$", &["\t "], &["a", "0"]),
        (r"^a\Vb$", &["a b"], &["a\nb"]),
        (r"^\Qa.b[\E$", &["a.b["], &["axb["]),
        (r"^a{x}$", &["a{x}"], &["a"]),
        (r"^a{1,2}$", &["a", "aa"], &["aaa", ""]),
        (r"^(a)\g1$", &["aa"], &["a"]),
        (r"^(a)\g{-1}$", &["aa"], &["a"]),
        (r"^(?<n>a)\g{n}$", &["aa"], &["a"]),
        (r"^(?P<n>a)(?P=n)$", &["aa"], &["a"]),
        (r"^(a)?(?(1)b|c)$", &["ab", "c"], &["b"]),
        (r"^\(?R\)?$", &["(R)", "R"], &["x"]),
        (r"^\0\x4\cA\e$", &["\0\u{4}\u{1}\u{1b}"], &[""]),
        (r"^a#b$", &["a#b"], &["a"]),
        (r"^(?i:a)b$", &["Ab"], &["AB"]),
    ] {
        means(pattern, found, not_found);
    }
}

#[test]
fn recursion_verbs_and_what_is_not_known_are_refused() {
    for pattern in [
        "(?R)",
        "^(?R)$",
        "^x(?R)",
        "(?0)",
        "(?1)",
        "(a)(?1)",
        "(a)(?-1)",
        "(?+1)(a)",
        "(?&name)",
        "(?P>name)",
        "(?<n>a)(?&n)",
        "(?<n>a)(?P>n)",
        r"(a)\g<1>",
        r"(a)\g'1'",
        r"\g<0>",
        "(?(R)a|b)",
        "(?(DEFINE)(a))b",
        "(*FAIL)",
        "(*F)",
        "(*ACCEPT)a",
        "(*COMMIT)a",
        "(*PRUNE)a",
        "(*SKIP)a",
        "(*UTF8)a",
        "(*)a",
        "(?C)a",
        "(?~a)",
        "(?^a)",
        "(?u)a",
        "(?iR)a",
        "(?i-R)a",
        "(?x)( ?R)",
        "((?#c)?R)",
        "(?x)(#c\n?R)",
        "[[:foo:]]",
        "[[.a.]]",
        "[:alpha:]",
        "[a",
        "[]",
        "[z-a]",
        "^[a--b]+$",
        r"[a-\d]",
        r"[a\E-c]",
        r"\",
        r"\pL",
        r"\X",
        r"\y",
        r"[\Qa]",
        r"\x{100}",
        "(a(?i)b)",
        "(?x)a#b",
    ] {
        let refused = Pattern::new(pattern).map(|_| ()).expect_err(pattern).to_string();
        assert!(refused.starts_with("not a regular expression that can be used: "), "{refused}");
        assert!(!refused.contains('\n'), "one line: {refused}");
    }
}

#[test]
fn a_pattern_that_was_taken_before_keeps_its_text_and_grants_nothing() {
    for once in ["(?R)", "^x(?R)", "(*FAIL)"] {
        let stored = Pattern::stored(once).expect("it was taken once");
        assert_eq!(stored.text(), once);
        for name in [&b""[..], b"a", b"x", b"(?R)"] {
            assert!(!stored.matches(name) && !stored.matches_often(name), "{once}");
        }
    }
    assert!(Pattern::stored("(").is_err(), "nobody took it");
    assert!(Pattern::stored("^[^a&&b]+$").expect("it means something").matches(b"c"));
}

proptest::proptest! {
    /// Whatever comes, nothing panics.
    #[test]
    fn any_text_is_translated_or_refused(text in "[\\[\\]^&~:a\\\\(?R)*{}1,x#\\-ä]{0,24}") {
        drop(Pattern::new(&text));
    }
}
