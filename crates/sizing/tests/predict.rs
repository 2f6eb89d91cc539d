//! The capacity model on the study's table: how far off it is where it has not looked, and what it
//! says of one small machine.
//!
//! Invariant: bounds below are what the model reaches today with a little room; a change that makes
//! it worse must say so here.
#![allow(clippy::unwrap_used, missing_docs)]

use sizing::input::Document;
use sizing::outcome::Shown;
use sizing::predict::{Form, Prediction, Question, predict};
use sizing::prices::PriceList;
use sizing::requirement::Requirement;
use sizing::results::{Results, Tolerance};
use sizing::study;

fn question(candidates: &[&str], left_out: &[&str]) -> Question {
    let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    Question {
        requirement: Requirement { rate: 30_000.0, p99_ms: 1000.0, lose_node: false, backlog_rate: None },
        candidates: owned(candidates),
        left_out: owned(left_out),
        message_bytes: 1024.0,
    }
}

fn of_study(question: &Question) -> Prediction {
    predict(&study::results().unwrap(), Some(&study::prices().unwrap()), question).unwrap()
}

#[test]
fn leaving_configurations_and_clusters_out_is_off_by_less_than_a_tenth() {
    let prediction = of_study(&question(&[], &[]));
    assert_eq!((prediction.form, prediction.fitted_on), (Form::Fitted, 21));
    let [one, cluster] = prediction.validations.as_slice() else { panic!("two validations") };
    assert!(one.rms < 0.09 && one.worst.abs() < 0.17, "{one:?}");
    assert!(cluster.rms < 0.09 && cluster.worst.abs() < 0.17, "{cluster:?}");
    // A band for nine of ten should hold about nineteen of twenty-one.
    assert!(one.inside >= 18 && cluster.inside >= 18, "{} {}", one.inside, cluster.inside);
    let text = prediction.text();
    assert!(text.contains("Leaving out each configuration and predicting it: error 8."), "{text}");
    assert!(text.contains("Leaving out each cluster with all its volumes and predicting it: error 8."), "{text}");
}

#[test]
fn a_cluster_left_out_is_predicted_beside_what_was_measured() {
    let prediction = of_study(&question(&[], &["7x8"]));
    assert_eq!(prediction.fitted_on, 18);
    let measured: Vec<f64> = prediction.predicted.iter().map(|one| one.measured.unwrap()).collect();
    assert_eq!(measured.len(), 3);
    for one in &prediction.predicted {
        let error = one.top.rate / one.measured.unwrap() - 1.0;
        assert!(error.abs() < 0.17, "{} {error}", one.configuration.name());
        assert!(one.top_with_one_lost.unwrap().rate < one.top.rate);
    }
}

#[test]
fn what_was_measured_to_hold_it_is_advised_before_what_is_predicted_to() {
    // Without candidates, and with a dearer one that holds it within the band: 5x8/st1 was
    // measured, at half its price.
    for (candidates, left_out) in [(&["9x16/gp2"][..], &["7x8"][..]), (&["9x16/gp2"], &[]), (&[], &[])] {
        let text = of_study(&question(candidates, left_out)).text();
        let first = text.lines().next().unwrap();
        assert!(first.starts_with("Measured to hold it: 5x8/st1 at $2,800 a month, it matched "), "{first}");
        assert!(!first.contains("9x16"), "{first}");
    }
    // One machine that held the rate, and clusters of the price list that are dearer: none of them
    // is worth a word.
    let results = Results::read(&Document::new("small.jsonl", SMALL), Tolerance::Whole).unwrap();
    let prices = "currency = \"$\"\n[[machine]]\nname = \"mine\"\nvcpus = 2\nmonth = 40\n[[volume]]\nname = \"nvme\"\nmonth = 10\n";
    let prices = PriceList::read(&Document::new("p.toml", prices)).unwrap();
    let advice = |rate: f64| {
        let asked = Question {
            requirement: Requirement { rate, p99_ms: 1000.0, lose_node: false, backlog_rate: None },
            ..question(&[], &[])
        };
        let prediction = predict(&results, Some(&prices), &asked).unwrap();
        let text = prediction.text();
        assert!(prediction.html().contains("class=\"answer ") && prediction.html().contains("Predictions are off by"));
        text.lines().next().unwrap().to_owned()
    };
    assert_eq!(
        advice(30_000.0),
        "Measured to hold it: 1x2/nvme at $50 a month, it matched 30,000 msg/s. Nothing cheaper is predicted to hold it."
    );
    // Between what it held and what it missed: the one machine is the cheapest that may hold it.
    let open = advice(33_000.0);
    assert!(
        open.starts_with("Nothing that was measured is shown to hold it.")
            && open.contains(
                "1x2/nvme at $50 a month, which held 30,000 msg/s and fell short of 40,000 where it was measured"
            ),
        "{open}"
    );
    assert!(!advice(100_000.0).contains("1x2/nvme"), "it fell short of less");
    // A named candidate that was measured keeps the verdict of its measurement.
    let named = Question { candidates: vec!["1x2/nvme".to_owned()], ..question(&[], &[]) };
    let prediction = predict(&results, Some(&prices), &named).unwrap();
    assert_eq!((prediction.predicted[0].verdict, prediction.predicted[0].measured), (Shown::Yes, Some(34_000.0)));
}

#[test]
fn a_machine_with_other_cpus_than_the_price_file_says_is_a_contradiction() {
    let results = Results::read(&Document::new("small.jsonl", SMALL), Tolerance::Whole).unwrap();
    let prices = "[[machine]]\nname = \"mine\"\nvcpus = 1\nmonth = 40\n[[volume]]\nname = \"nvme\"\nmonth = 10\n";
    let prices = PriceList::read(&Document::new("p.toml", prices)).unwrap();
    let error = predict(&results, Some(&prices), &question(&[], &[])).unwrap_err();
    let said = "small.jsonl:2: vcpus: 2 contradicts p.toml, where machine \"mine\" has vcpus = 1";
    assert_eq!(error, said);
    let asked = question(&[], &[]).requirement;
    assert_eq!(sizing::report::report(&results, Some(&prices), None, &asked).unwrap_err(), said);
}

#[test]
fn shapes_that_nobody_measured_lie_between_their_neighbours() {
    let prediction = of_study(&question(&["5x36/gp2", "5x16/gp2", "7x36/gp2", "9xc5.4xlarge/gp2"], &[]));
    let rate = |name: &str| prediction.predicted.iter().find(|one| one.configuration.name() == name).unwrap().top.rate;
    assert!(rate("5x16/gp2") < rate("5x36/gp2") && rate("5x36/gp2") < rate("7x36/gp2"));
    let nine = prediction.predicted.iter().find(|one| one.configuration.nodes == 9).unwrap();
    assert_eq!((nine.configuration.machine.as_str(), nine.month), ("c5.4xlarge", Some(9.0 * 489.0 + 900.0)));
}

#[test]
fn a_slow_volume_bounds_what_the_model_would_allow() {
    let text = study::PRICES.replacen("mib_s = 250", "mib_s = 20", 1);
    let prices = PriceList::read(&Document::new("p.toml", &text)).unwrap();
    let prediction = predict(&study::results().unwrap(), Some(&prices), &question(&["5x36/gp2"], &[])).unwrap();
    // 20 MiB/s on 5 nodes, 3 copies, each of 1 KiB written twice.
    let bound = 20.0 * 1_048_576.0 * 5.0 / (3.0 * 1024.0 * 2.0);
    assert!((prediction.predicted[0].top.rate - bound).abs() < 1.0);
    assert_eq!(prediction.predicted[0].verdict, Shown::No);
}

const SMALL: &str = concat!(
    "{\"kind\":\"header\",\"format\":\"leveret-sizing/1\"}\n",
    "{\"kind\":\"cluster\",\"cluster\":\"1x2\",\"nodes\":1,\"machine\":\"mine\",\"vcpus\":2,\"volume\":\"nvme\"}\n",
    "{\"kind\":\"step\",\"cluster\":\"1x2\",\"volume\":\"nvme\",\"test\":\"rising\",\"target\":10000,\"seconds\":60,\"consumers\":100,",
    "\"published\":10000,\"consumed\":10000,\"p50_ms\":1.0,\"p99_ms\":5.0}\n",
    "{\"kind\":\"step\",\"cluster\":\"1x2\",\"volume\":\"nvme\",\"test\":\"rising\",\"target\":20000,\"seconds\":60,\"consumers\":100,",
    "\"published\":20000,\"consumed\":20000,\"p50_ms\":1.5,\"p99_ms\":8.0}\n",
    "{\"kind\":\"step\",\"cluster\":\"1x2\",\"volume\":\"nvme\",\"test\":\"rising\",\"target\":30000,\"seconds\":60,\"consumers\":100,",
    "\"published\":30000,\"consumed\":30000,\"p50_ms\":2.5,\"p99_ms\":20.0}\n",
    "{\"kind\":\"step\",\"cluster\":\"1x2\",\"volume\":\"nvme\",\"test\":\"rising\",\"target\":40000,\"seconds\":60,\"consumers\":100,",
    "\"published\":34000,\"consumed\":34000,\"p50_ms\":250,\"p99_ms\":4000}\n",
    "{\"kind\":\"end\"}\n"
);

#[test]
fn what_was_interrupted_is_gone_on_with_first_and_its_tables_have_no_column_of_nothing() {
    let text = SMALL
        .replace("\"leveret-sizing/1\"", "\"leveret-sizing/1\",\"plan\":\"f\"")
        .replace("{\"kind\":\"end\"}\n", "");
    let text = text.replacen("\"p50_ms\"", "\"cpu_percent\":20,\"p50_ms\"", 3);
    let results = Results::read(&Document::new("small.jsonl", &text), Tolerance::Partial).unwrap();
    let asked = question(&[], &[]).requirement;
    let told = sizing::report::report(&results, None, None, &asked).unwrap();
    let next = told.answer.next.as_ref().unwrap();
    assert!(
        next.starts_with("Measure next: the rest of the plan. The run was interrupted, or measurements failed:"),
        "{next}"
    );
    let text = told.text();
    let heads = text.lines().find(|line| line.starts_with("configuration")).unwrap();
    assert!(heads.contains("held, msg/s") && !heads.contains("a month") && !heads.contains("why p99"), "{heads}");
    assert!(text.contains("\nWhy p99\n  1x2/nvme: 20.0 ms at 10 % CPU: "), "{text}");
    assert!(told.html().contains("<h2>Why p99</h2>") && told.html().contains("1x2/nvme: 20.0 ms at 10 % CPU: "));
}

#[test]
fn a_candidate_without_a_price_is_told_of_right_behind_the_advice() {
    let (results, prices) = (study::results().unwrap(), study::prices().unwrap());
    let told = |candidates: &[&str]| predict(&results, Some(&prices), &question(candidates, &[])).unwrap();
    let prediction = told(&["5x99/gp2"]);
    let (text, html) = (prediction.text(), prediction.html());
    let lines: Vec<&str> = text.lines().take(3).collect();
    assert!(lines[1].starts_with("Asked for: 5x99/gp2 (99 vCPU), which has no price, "), "{text}");
    assert!(lines[1].contains("hold it, top rate ") && lines[1].ends_with(" within the band)."), "{text}");
    assert!(lines[2].starts_with("Predictions are off by "), "{text}");
    assert!(html.find("Asked for: 5x99/gp2").unwrap() < html.find("<h2>Predicted").unwrap());
    assert_eq!(prediction.asked, ["5x99/gp2"]);
    // One that the advice names is not told twice, and of many the first are told.
    let more = Question {
        requirement: Requirement { rate: 68_000.0, ..question(&[], &[]).requirement },
        ..question(&["9x16/gp2"], &[])
    };
    let text = predict(&results, Some(&prices), &more).unwrap().text();
    assert!(
        text.lines().next().unwrap().contains(" 9x16/gp2 (c5.4xlarge) at $5,301 a month")
            && !text.contains("Asked for:"),
        "{text}"
    );
    let many = ["3x90/gp2", "5x90/gp2", "7x90/gp2", "9x90/gp2", "11x90/gp2"];
    assert!(told(&many).text().contains("; 2 more stand in the table."), "{}", told(&many).text());
    // Nobody asked for one of the price list by name.
    assert!(told(&[]).asked.is_empty() && !told(&[]).text().contains("Asked for:"));
}

#[test]
fn odd_measurements_are_named_beside_what_is_predicted_from_them() {
    let text = SMALL.replace("\"published\":20000,\"consumed\":20000", "\"published\":20000,\"consumed\":19000");
    let results = Results::read(&Document::new("small.jsonl", &text), Tolerance::Whole).unwrap();
    let prediction = predict(&results, Some(&study::prices().unwrap()), &question(&["7x16/gp2"], &[])).unwrap();
    let asked = question(&[], &[]).requirement;
    let answer = sizing::report::report(&results, None, None, &asked).unwrap().answer;
    assert!(answer.next.unwrap().starts_with("Measure next: the same again, in longer steps"), "{}", answer.line);
    let odd = "1x2/nvme, rising: 20,000 msg/s (19,000 came through) fell short, and 30,000 was held.";
    assert!(prediction.text().contains(odd) && prediction.html().contains(odd), "{}", prediction.text());
}

#[test]
fn one_small_machine_borrows_the_form_and_says_what_it_assumes() {
    let results = Results::read(&Document::new("small.jsonl", SMALL), Tolerance::Whole).unwrap();
    let prices = study::prices().unwrap();
    let prediction = predict(&results, Some(&prices), &question(&["3x8/gp2", "1x2/nvme", "7x16/gp2"], &[])).unwrap();
    assert_eq!(prediction.form, Form::Borrowed);
    let of = |name: &str| prediction.predicted.iter().find(|one| one.configuration.name() == name).unwrap();
    // What was measured is predicted as measured: the scale was made from it.
    let own = of("1x2/nvme").top;
    assert!((own.rate / 34_000.0 - 1.0).abs() < 1e-9, "{own:?}");
    assert!(own.low < 34_000.0 && own.high > 34_000.0);
    // Farther away the band is no narrower.
    let far = of("7x16/gp2").top;
    assert!(far.rate > own.rate && far.low / far.rate < 0.9);
    let assumed = prediction.assumptions.join("\n");
    for sentence in
        ["the form of the model is the study's", "volume nvme is not in the study", "same kind of CPU", "p99 is"]
    {
        assert!(assumed.contains(sentence), "{sentence}: {assumed}");
    }
    assert!(of("1x2/nvme").p99_ms.unwrap() > 5.0);
}

#[test]
fn two_machines_measured_here_say_how_far_off_a_prediction_for_the_other_is() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/examples/sizing/");
    let open = |name: &str| Document::open(std::path::Path::new(&format!("{folder}{name}"))).unwrap();
    let results = Results::read(&open("local.jsonl"), Tolerance::Whole).unwrap();
    let prices = PriceList::read(&open("prices-local.toml")).unwrap();
    let asked = question(&["3xlarge/disk-50"], &["rabbitmq-1x1", "rabbitmq-1x0.5"]);
    let prediction = predict(&results, Some(&prices), &asked).unwrap();
    let own = &prediction.validations[0];
    assert_eq!((own.left_out, own.points.len()), ("configuration measured here", 2));
    // Half the CPU did as much: each is predicted from the other as if CPU decided.
    assert!(own.rms > 0.3, "{own:?}");
    let text = prediction.text();
    let lines: Vec<&str> = text.lines().take(3).collect();
    let told = format!("Predictions are off by {:.1} % ", 100.0 * own.rms);
    assert!(lines[2].starts_with(&told) && lines[2].contains("each configuration measured here"), "{text}");
    // The candidate is not what the first line advises.
    assert!(
        lines[1].starts_with("Asked for: 3x8/disk-50 (large) at $390 a month is predicted not to hold it"),
        "{text}"
    );
    assert!(lines[1].ends_with("top rate 25,600 msg/s, which is what its disk carries."), "{text}");
    assert!(prediction.html().contains(&told));
}

#[test]
fn what_cannot_be_predicted_is_refused_by_name() {
    let results = study::results().unwrap();
    let prices = study::prices().unwrap();
    let error = |question: &Question| predict(&results, Some(&prices), question).unwrap_err();
    assert!(error(&question(&["7x16/tape"], &[])).contains("no volume \"tape\" was measured; there are gp2, io1, st1"));
    assert!(error(&question(&["7/gp2"], &[])).starts_with("--candidate 7/gp2: the number of nodes is missing"));
    assert!(error(&question(&["0x16/gp2"], &[])).contains("nodes are from 1 to 1000"));
    assert!(error(&question(&["3xfast/gp2"], &[])).contains("no machine \"fast\" is known"));
    assert!(error(&question(&[], &["8x8"])).contains("nothing of that name was measured"));
}
