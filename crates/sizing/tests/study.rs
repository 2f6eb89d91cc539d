//! The arithmetic against the study: its boards come out of its rates and prices, and what does not
//! is named, cell by cell.
//!
//! Invariant: the expected figures below were worked out by hand from the published tables, not by
//! this program.
#![allow(clippy::unwrap_used, missing_docs)]

use sizing::board::{Kind, board, cost_per_thousand, whole};
use sizing::check::{Check, Fault, Finding, check};
use sizing::input::Document;
use sizing::outcome::{Shown, outcomes};
use sizing::prices::{Basis, PriceList};
use sizing::report::report;
use sizing::requirement::{Requirement, Wish};
use sizing::results::{Results, Tolerance};
use sizing::study;

fn requirement() -> Requirement {
    Requirement::stated(&Wish::default(), study::results().unwrap().header.requirement).unwrap()
}

fn checked() -> Check {
    let (results, asked) = (study::results().unwrap(), requirement());
    check(&study::published().unwrap(), &outcomes(&results, &asked), &study::prices().unwrap(), &asked).unwrap()
}

fn place(finding: &Finding) -> (&str, &str) {
    (finding.volume.as_deref().unwrap_or(""), &finding.cell)
}

#[test]
fn all_21_configurations_are_there_with_their_rates() {
    let all = outcomes(&study::results().unwrap(), &requirement());
    assert_eq!(all.len(), 21);
    let rates = |cluster: &str| -> Vec<f64> {
        all.iter().filter(|o| o.configuration.cluster == cluster).map(|o| o.top_rate / 1000.0).collect()
    };
    assert_eq!(rates("7x16"), [65.0, 67.0, 67.0]);
    assert_eq!(rates("5x8"), [50.0, 42.0, 37.0]);
    assert_eq!(rates("3x16"), [37.0, 36.0, 27.0]);
}

#[test]
fn every_board_of_rates_and_of_cost_at_top_rate_comes_out_as_published() {
    let check = checked();
    for made in check.boards.iter().filter(|made| made.kind != Kind::CostAtTarget) {
        let published: Vec<&str> = made.published.iter().map(|cell| cell.cluster.as_str()).collect();
        let recomputed: Vec<&str> = made.recomputed.rows.iter().map(|row| row.cluster.as_str()).collect();
        assert_eq!(published, recomputed, "{:?} {:?}", made.kind, made.volume);
        for (cell, row) in made.published.iter().zip(&made.recomputed.rows) {
            let is_cut_off = cell.cluster == "3x36" && cell.volume == "st1";
            let same = if is_cut_off { f64::floor } else { whole };
            assert_eq!(cell.cost.map(|_| same(row.cost.unwrap())), cell.cost, "{cell:?}");
            assert_eq!(cell.rate, Some(row.rate), "{cell:?}");
        }
    }
}

#[test]
fn boards_at_the_target_come_out_as_published_once_the_wrong_divisor_is_known() {
    // Seven of the seventeen cells are what 45k msg/s would cost; the others follow from 30k.
    let check = checked();
    let at_target = |made: &&sizing::check::BoardCheck| made.kind == Kind::CostAtTarget && made.volume.is_some();
    let mut divided_by_45 = 0;
    for made in check.boards.iter().filter(at_target) {
        for cell in &made.published {
            let row = made.recomputed.rows.iter().find(|row| row.cluster == cell.cluster).unwrap();
            let month = row.cost.unwrap() * 30.0;
            let follows = whole(cost_per_thousand(month, 30000.0)) == cell.cost.unwrap();
            if !follows {
                assert_eq!(whole(cost_per_thousand(month, 45000.0)), cell.cost.unwrap(), "{cell:?}");
                divided_by_45 += 1;
            }
        }
    }
    assert_eq!(divided_by_45, 7);
}

#[test]
fn the_cells_that_do_not_follow_are_these() {
    let check = checked();
    let of = |kind: Kind, fault: Fault| -> Vec<(&str, &str)> {
        check.findings.iter().filter(|f| f.board == Some(kind) && f.fault == fault).map(place).collect()
    };
    let at_target = of(Kind::CostAtTarget, Fault::DoesNotFollow);
    let per_volume = [
        ("io1", "5x16"),
        ("io1", "7x8"),
        ("io1", "9x8"),
        ("io1", "7x16"),
        ("gp2", "7x8"),
        ("gp2", "9x8"),
        ("gp2", "7x16"),
    ];
    // The last board, over all volumes, repeats three of them.
    let over_all = [("gp2", "7x8"), ("gp2", "9x8"), ("gp2", "7x16")];
    assert_eq!(at_target, [&per_volume[..], &over_all].concat());
    assert_eq!(of(Kind::CostAtTop, Fault::DoesNotFollow), [("st1", "3x36")]);
    assert_eq!(of(Kind::CostAtTop, Fault::RestsOnWrongPrice), [("io1", "7x16"), ("gp2", "7x16"), ("st1", "7x16")]);
    assert_eq!(of(Kind::CostAtTarget, Fault::RestsOnWrongPrice), [("st1", "7x16")]);
    assert_eq!(of(Kind::TopRate, Fault::Contradiction), []);
    let why = &check.findings.iter().find(|f| f.board == Some(Kind::CostAtTarget)).unwrap().why;
    assert_eq!(why, "6070 / 30 is 202.3; 135 is what 6070 / 45 gives");
}

#[test]
fn the_wrong_total_is_found_by_the_price_of_one_machine() {
    let prices = study::prices().unwrap();
    assert_eq!(prices.machine_month("c5.4xlarge"), Some(489.0));
    let findings = prices.findings();
    assert_eq!(findings.len(), 1, "{findings:?}");
    assert_eq!((findings[0].cluster.as_str(), findings[0].stated, findings[0].expected), ("7x16", 4123.0, 3423.0));
}

#[test]
fn corrected_boards_are_these() {
    let check = checked();
    let corrected = |volume: Option<&str>, kind: Kind| -> Vec<(String, f64)> {
        let is_it = |made: &&sizing::check::BoardCheck| made.kind == kind && made.volume.as_deref() == volume;
        let made = check.boards.iter().find(is_it).unwrap();
        let name = |row: &sizing::board::Row| match volume {
            Some(_) => row.cluster.clone(),
            None => format!("{}/{}", row.cluster, row.volume),
        };
        made.corrected.rows.iter().map(|row| (name(row), whole(row.cost.unwrap()))).collect()
    };
    let list = |cells: &[(&str, f64)]| -> Vec<(String, f64)> {
        cells.iter().map(|(name, cost)| ((*name).to_owned(), *cost)).collect()
    };
    // 3x36: 5475 / 30; 5x16: (2445 + 3625) / 30; 7x8: 6790 / 30; 7x16: (3423 + 5075) / 30; 9x8:
    // 8730 / 30.
    assert_eq!(
        corrected(Some("io1"), Kind::CostAtTarget),
        list(&[("3x36", 183.0), ("5x16", 202.0), ("7x8", 226.0), ("7x16", 283.0), ("9x8", 291.0)])
    );
    assert_eq!(
        corrected(Some("gp2"), Kind::CostAtTarget),
        list(&[("7x8", 81.0), ("5x16", 98.0), ("9x8", 104.0), ("3x36", 120.0), ("7x16", 137.0)])
    );
    assert_eq!(
        corrected(Some("st1"), Kind::CostAtTarget),
        list(&[("5x8", 93.0), ("7x8", 131.0), ("5x16", 134.0), ("3x36", 142.0), ("9x8", 168.0), ("7x16", 188.0)])
    );
    assert_eq!(
        corrected(None, Kind::CostAtTarget),
        list(&[("7x8/gp2", 81.0), ("5x8/st1", 93.0), ("5x16/gp2", 98.0), ("9x8/gp2", 104.0), ("3x36/gp2", 120.0)])
    );
    // With its machines at 3423, 7x16 overtakes on every volume.
    assert_eq!(corrected(Some("io1"), Kind::CostAtTop)[4], ("7x16".to_owned(), 131.0));
    assert_eq!(corrected(Some("gp2"), Kind::CostAtTop)[5], ("7x16".to_owned(), 62.0));
    assert_eq!(corrected(Some("st1"), Kind::CostAtTop)[4], ("7x16".to_owned(), 84.0));
}

#[test]
fn sentences_that_the_figures_do_not_bear_are_named() {
    let check = checked();
    let sentences: Vec<_> = check.findings.iter().filter(|f| f.fault == Fault::Sentence).map(place).collect();
    assert_eq!(
        sentences,
        [("st1", "5x16"), ("io1", "3x16"), ("io1", "3x36"), ("io1", "5x8"), ("io1", "3x36")],
        "slower on st1 but for 5x16; three clusters were faster on io1; and three large machines lead io1 once its board is right"
    );
    let doubtful: Vec<_> = check.findings.iter().filter(|f| f.fault == Fault::Doubtful).map(place).collect();
    assert_eq!(doubtful, [("io1", "5x8"), ("gp2", "5x8")]);
}

#[test]
fn the_requirement_of_the_study_leaves_one_cluster_and_each_condition_has_its_price() {
    let (results, prices) = (study::results().unwrap(), study::prices().unwrap());
    let report = report(&results, Some(&prices), None, &requirement()).unwrap();
    let recommendation = report.recommendation.unwrap();
    let chosen = recommendation.chosen.unwrap();
    assert_eq!((chosen.name.as_str(), chosen.month), ("7x16/gp2", 4123.0));
    assert!(chosen.not_shown.contains(&"one node lost".to_owned()), "{chosen:?}");
    let changes = recommendation.changes.join("\n");
    assert!(changes.contains("with a backlog only at 20,000 msg/s: 9x8/gp2 at $3,105 a month"), "{changes}");
    assert!(changes.contains("with a backlog only at 10,000 msg/s: 7x8/gp2 at $2,415 a month"), "{changes}");
    let all = outcomes(&results, &requirement());
    let three = all.iter().find(|o| o.configuration.name() == "3x16/io1").unwrap();
    assert_eq!((three.holds_rate, three.holds_loss), (Shown::No, Shown::NotShown));
}

#[test]
fn of_two_at_one_price_the_one_that_held_more_comes_first() {
    let cluster = |name: &str| {
        format!(
            "{{\"kind\":\"cluster\",\"cluster\":\"{name}\",\"nodes\":1,\"machine\":\"m\",\"vcpus\":1,\"volume\":\"v\"}}\n"
        )
    };
    let summary = |name: &str, held: u32, top: u32| {
        format!(
            "{{\"kind\":\"summary\",\"cluster\":\"{name}\",\"volume\":\"v\",\"top_rate\":{top},\"held\":{held},\"p99_below_ms\":9}}\n"
        )
    };
    let header = "{\"kind\":\"header\",\"format\":\"leveret-sizing/1\"}\n";
    let prices = "[[machine]]\nname = \"m\"\nvcpus = 1\nmonth = 8\n[[volume]]\nname = \"v\"\nmonth = 10\n";
    let prices = PriceList::read(&Document::new("p.toml", prices)).unwrap();
    let asked = Requirement { rate: 2000.0, p99_ms: 1000.0, lose_node: false, backlog_rate: None };
    let advice = |lines: [String; 2]| {
        let text = [header, &cluster("one"), &cluster("two"), &lines.concat(), "{\"kind\":\"end\"}\n"].concat();
        let results = Results::read(&Document::new("r.jsonl", &text), Tolerance::Whole).unwrap();
        report(&results, Some(&prices), None, &asked).unwrap().recommendation.unwrap()
    };
    let of = |advice: &sizing::recommend::Recommendation| advice.chosen.clone().unwrap().name;
    let more = advice([summary("one", 2000, 9000), summary("two", 8000, 8000)]);
    assert_eq!(of(&more), "two/v");
    assert!(
        more.changes.contains(&"one/v costs the same, and held less: a lower price of it decides".to_owned()),
        "{more:?}"
    );
    let even = advice([summary("one", 2000, 2500), summary("two", 2000, 2600)]);
    assert_eq!(of(&even), "two/v");
    assert!(even.changes.contains(&"one/v costs the same: a lower price of it decides".to_owned()), "{even:?}");
    assert!(!even.changes.iter().any(|change| change.contains("as the price file states them")), "{even:?}");
}

/// Name, month of its machine, and of its rising steps target, throughput and p99.
type Row<'a> = (&'a str, u32, &'a [(u32, u32, u32)]);

fn measured(rows: &[Row<'_>]) -> (Results, PriceList) {
    let (mut lines, mut prices) = ("{\"kind\":\"header\",\"format\":\"leveret-sizing/1\"}\n".to_owned(), String::new());
    for (name, month, steps) in rows {
        prices += &format!("[[machine]]\nname = \"{name}\"\nvcpus = 1\nmonth = {month}\n");
        lines += &format!(
            "{{\"kind\":\"cluster\",\"cluster\":\"{name}\",\"nodes\":1,\"machine\":\"{name}\",\"vcpus\":1,\"volume\":\"v\"}}\n"
        );
        for (target, through, p99) in *steps {
            lines += &format!(
                "{{\"kind\":\"step\",\"cluster\":\"{name}\",\"volume\":\"v\",\"test\":\"rising\",\"target\":{target},\"seconds\":9,\
                 \"consumers\":2,\"published\":{through},\"consumed\":{through},\"p50_ms\":1,\"p99_ms\":{p99}}}\n"
            );
        }
    }
    lines += "{\"kind\":\"end\"}\n";
    prices += "[[volume]]\nname = \"v\"\nmonth = 0\n";
    let results = Results::read(&Document::new("r.jsonl", &lines), Tolerance::Whole).unwrap();
    (results, PriceList::read(&Document::new("p.toml", &prices)).unwrap())
}

#[test]
fn what_was_never_shown_is_never_recommended_and_the_first_line_says_what_was() {
    // The cheap one never fell short, and was driven to 24,000 only; the dear one missed 64,000.
    let cheap: &[(u32, u32, u32)] = &[(12_000, 12_000, 5), (24_000, 24_000, 9)];
    let dear: &[(u32, u32, u32)] =
        &[(12_000, 12_000, 4), (24_000, 24_000, 5), (32_000, 32_000, 6), (64_000, 40_000, 900)];
    let (results, prices) = measured(&[("cheap", 10, cheap), ("dear", 30, dear)]);
    let of = |rate: f64, prices: Option<&PriceList>| {
        let asked = Requirement { rate, p99_ms: 1000.0, lose_node: false, backlog_rate: None };
        let report = report(&results, prices, None, &asked).unwrap();
        let first = report.text().lines().next().unwrap().to_owned();
        assert_eq!(first, report.answer.line);
        assert!(report.html().find("class=\"answer ").unwrap() < report.html().find("<h2>").unwrap());
        let chosen = report.recommendation.as_ref().and_then(|found| found.chosen.clone()).map(|chosen| chosen.name);
        (first, report.answer.next.clone().unwrap_or_default(), chosen)
    };
    let (first, next, chosen) = of(12_000.0, Some(&prices));
    assert_eq!(
        first,
        "Take cheap/v at $10 a month: it held 12,000 msg/s, with 100 % room: 24,000 msg/s is the highest rate that it matched; p99 5.00 ms at \
         12,000 msg/s."
    );
    assert_eq!((next.as_str(), chosen.as_deref()), ("", Some("cheap/v")));
    let (first, next, chosen) = of(30_000.0, Some(&prices));
    assert!(
        first.starts_with("Take dear/v at $30 a month: it held 30,000 msg/s, with 7 % room: 32,000 msg/s"),
        "{first}"
    );
    assert_eq!(chosen.as_deref(), Some("dear/v"));
    assert_eq!(
        next,
        "Measure next: cheap/v at $10 a month, 30,000 msg/s; p99 within 1,000 ms (it held 24,000, and nothing higher was tried), which is \
         cheaper."
    );
    let (first, next, chosen) = of(50_000.0, Some(&prices));
    assert_eq!(
        first,
        "Nothing that was measured is shown to hold 50,000 msg/s: the highest rate held is 32,000 msg/s, by dear/v at $30 a month; it fell \
         short of 64,000."
    );
    assert!(next.starts_with("Measure next: cheap/v at $10 a month, 50,000 msg/s;"), "{next}");
    assert_eq!(chosen, None, "it was driven to 24,000 and no further");
    // Without prices the same is said of rates.
    let (first, next, _) = of(50_000.0, None);
    assert!(
        first.starts_with("Nothing that was measured is shown to hold 50,000 msg/s") && !next.is_empty(),
        "{first}"
    );
    let (first, ..) = of(30_000.0, None);
    assert_eq!(
        first,
        "dear/v held 30,000 msg/s, with 7 % room: 32,000 msg/s is the highest rate that it matched; p99 6.00 ms at 32,000 msg/s. Nothing else \
         that was measured held it and fails nothing; whether to take it, prices decide (`--prices FILE`)."
    );
    // And of what each of them failed.
    let failing = measured(&[("slow", 10, &[(12_000, 12_000, 5000)])]);
    let asked = Requirement { rate: 12_000.0, p99_ms: 1000.0, lose_node: false, backlog_rate: None };
    let answer = report(&failing.0, Some(&failing.1), None, &asked).unwrap().answer;
    assert!(answer.line.contains("1 of 1 held 12,000 msg/s, but slow/v fails p99 within 1,000 ms"));
}

#[test]
fn without_prices_nothing_is_to_be_taken_and_the_first_line_says_who_held_it_best_and_who_else_did() {
    // All matched 8,000; the first has the longest wait, the second the shorter of two equal top rates.
    let slow: &[(u32, u32, u32)] = &[(2000, 2000, 55), (8000, 8000, 90)];
    let lower: &[(u32, u32, u32)] = &[(2000, 2000, 30), (8000, 8000, 90), (16_000, 9000, 900)];
    let higher: &[(u32, u32, u32)] = &[(2000, 2000, 30), (8000, 8000, 90), (16_000, 9500, 900)];
    let (results, prices) =
        measured(&[("slow", 5, slow), ("lower", 20, lower), ("higher", 30, higher), ("slower", 40, slow)]);
    let asked = Requirement { rate: 2000.0, p99_ms: 1000.0, lose_node: false, backlog_rate: None };
    let open = report(&results, None, None, &asked).unwrap();
    let line = "higher/v held 2,000 msg/s best, with 300 % room: 8,000 msg/s is the highest rate that it matched; p99 30.0 ms at 2,000 msg/s. \
                Others held it too: lower/v, slow/v, slower/v; which to take, prices decide (`--prices FILE`).";
    assert_eq!((open.text().lines().next().unwrap(), open.answer.line.as_str()), (line, line));
    let html = open.html();
    assert!(html.contains(line) && html.contains("held it best") && !html.contains(">take<"), "{html}");
    let json: serde_json::Value = serde_json::from_str(&open.json()).unwrap();
    assert_eq!((&json["answer"]["line"], &json["answer"]["configuration"]), (&line.into(), &"higher/v".into()));
    assert_eq!(json["answer"]["others"], serde_json::json!(["lower/v", "slow/v", "slower/v"]));
    let priced = report(&results, Some(&prices), None, &asked).unwrap();
    assert!(priced.answer.line.starts_with("Take slow/v at $5 a month"), "{}", priced.answer.line);
    // Where nothing holds it, the cheapest of those that held most is named, and on the page the same one.
    let more = Requirement { rate: 50_000.0, ..asked };
    let priced = report(&results, Some(&prices), None, &more).unwrap();
    assert!(
        priced.answer.line.contains("8,000 msg/s, by slow/v at $5 a month; nothing higher"),
        "{}",
        priced.answer.line
    );
    assert_eq!(priced.answer.nearest.as_deref(), Some("slow/v"));
    let line = report(&results, None, None, &more).unwrap().answer.line;
    assert!(line.contains("8,000 msg/s, by higher/v, and as much by lower/v, slow/v, slower/v; it fell"), "{line}");
    let study = report(
        &study::results().unwrap(),
        Some(&study::prices().unwrap()),
        None,
        &Requirement { rate: 70_000.0, ..requirement() },
    );
    let study = study.unwrap();
    assert!(study.answer.line.contains("60,000 msg/s, by 7x16/gp2 at $4,123 a month"), "{}", study.answer.line);
    assert!(study.html().contains("7x16/gp2</"), "the tile names the one that the line names");
}

#[test]
fn a_configuration_without_a_price_is_named_with_its_line() {
    let text = study::RESULTS.replacen("\"machine\":\"c5.2xlarge\"", "\"machine\":\"c6\"", 1);
    let results = Results::read(&Document::new("mine.jsonl", &text), Tolerance::Whole).unwrap();
    let error = report(&results, Some(&study::prices().unwrap()), None, &requirement()).unwrap_err();
    assert_eq!(error, "mine.jsonl:4: cluster: no price for machine \"c6\" in study/prices.toml");
}

#[test]
fn text_html_and_json_hold_the_same_figures_and_html_fetches_nothing() {
    let (results, prices, published) =
        (study::results().unwrap(), study::prices().unwrap(), study::published().unwrap());
    let report = report(&results, Some(&prices), Some(&published), &requirement()).unwrap();
    let (text, html, json) = (report.text(), report.html(), report.json());
    for shown in [&text, &html, &json] {
        assert!(shown.contains("6070 / 30 is 202.3; 135 is what 6070 / 45 gives"));
    }
    assert!(
        html.contains("class=\"chart\"")
            && html.contains("default-src 'none'")
            && !html.contains(" src=")
            && !html.contains(" href=")
    );
    let parsed: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(parsed["recommendation"]["chosen"]["name"], "7x16/gp2");
    let top = board(
        Kind::TopRate,
        Some("gp2"),
        &outcomes(&results, &requirement()),
        Some((&prices, Basis::Corrected)),
        &requirement(),
    );
    assert_eq!(top.unwrap().rows[0].rate, 67000.0);
}
