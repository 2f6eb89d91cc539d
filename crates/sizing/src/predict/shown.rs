//! A prediction for people: text and a page.
//!
//! Invariant: the error of the model and everything assumed stand on the same page as the figures.

use std::fmt::Write as _;

use page::chart::Chart;
use page::escape;
use page::figures::{counted, exact, three};
use page::table::Table;
use page::tile::Tone;

use super::{Form, Known, Limit, Predicted, Prediction};
use crate::html::{add_point, card, dots, list};
use crate::model::Validation;
use crate::outcome::Shown;
use crate::report::{money, section};
use crate::requirement::Requirement;

/// Something that could be taken or measured.
struct Choice {
    month: f64,
    words: String,
}

/// Candidates that were asked for and are told of one by one above the table.
const ASKED_MAX: usize = 3;

const WRITES: &str = "a String takes everything";

impl Prediction {
    /// The prediction as JSON, one document.
    pub fn json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("a prediction holds text, finite numbers and flags");
        text.push('\n');
        text
    }

    /// The prediction for a terminal.
    pub fn text(&self) -> String {
        let mut text = format!("{}\n", self.advice());
        for line in self.behind() {
            writeln!(text, "{line}").expect(WRITES);
        }
        write!(text, "\n{}\n\n{}", self.headline(), self.model_line()).expect(WRITES);
        text.push_str(&self.parameter_table().text("  "));
        text.push('\n');
        for validation in &self.validations {
            writeln!(text, "{}", self.validation_line(validation)).expect(WRITES);
        }
        if let Some(validation) = self.validations.first().filter(|first| !first.left_out.contains("study")) {
            writeln!(text, "\nEach {} predicted without it", validation.left_out).expect(WRITES);
            text.push_str(&validation_table(validation).text("  "));
        }
        text.push_str("\nPredicted\n");
        text.push_str(&self.predicted_table().text("  "));
        section(&mut text, "To be read with care", &self.doubts);
        section(&mut text, "Assumed", &self.assumptions);
        text
    }

    /// The prediction as one page.
    pub fn html(&self) -> String {
        let mut body = card(Tone::Plain, &self.advice(), &self.behind(), &self.tiles(), ("", &[]));
        writeln!(body, "<p class=\"faint\">{}</p>", escape(&self.headline())).expect(WRITES);
        writeln!(body, "<h2>Predicted</h2>\n{}", self.predicted_table().html()).expect(WRITES);
        let chart = self.cost_chart();
        if !chart.is_empty() {
            body.push_str(&chart.html());
        }
        writeln!(body, "<h2>The model</h2>\n<p>{}</p>\n{}", escape(&self.model_line()), self.parameter_table().html())
            .expect(WRITES);
        for validation in &self.validations {
            writeln!(body, "<p>{}</p>", escape(&self.validation_line(validation))).expect(WRITES);
        }
        if let Some(validation) = self.validations.first() {
            let chart = validation_chart(validation);
            if !chart.is_empty() {
                body.push_str(&chart.html());
            }
            writeln!(body, "{}", validation_table(validation).html()).expect(WRITES);
        }
        body.push_str(&list("To be read with care", &self.doubts));
        body.push_str(&list("Assumed", &self.assumptions));
        page::page("Predicted capacity", &body)
    }

    /// How far the model can be believed.
    fn tiles(&self) -> Vec<(&'static str, String, String)> {
        let percent = |part: f64| format!("{} %", three(100.0 * part));
        let mut tiles: Vec<(&str, String, String)> = Vec::new();
        tiles.extend(self.validations.first().map(|validation| {
            let (inside, all) = (validation.inside, validation.points.len());
            let more = format!(
                "root mean square, {} at worst, where each {} was predicted from the others; {inside} of {all} lay in their band",
                percent(validation.worst.abs()),
                validation.left_out
            );
            ("predictions are off by", percent(validation.rms), more)
        }));
        let form = match self.form {
            Form::Fitted => "all of the model",
            Form::Borrowed => "only its scale; its form is the study's",
        };
        tiles.push((
            "fitted on",
            format!("{} measured", self.fitted_on),
            format!("{form}; error of the fit {}", percent(self.fit_error)),
        ));
        let of = |wanted: Shown| self.predicted.iter().filter(|one| one.verdict == wanted).count();
        let open = format!("{} may hold it, {} do not", of(Shown::NotShown), of(Shown::No));
        tiles.push(("predicted to hold it", format!("{} of {}", of(Shown::Yes), self.predicted.len()), open));
        tiles
    }

    fn headline(&self) -> String {
        let Requirement { rate, p99_ms, lose_node, .. } = self.requirement;
        let lost = if lose_node { ", also with one node lost" } else { "" };
        format!("Predicted capacity for {} msg/s with p99 within {} ms{lost}", exact(rate), exact(p99_ms))
    }

    fn model_line(&self) -> String {
        let from = match self.form {
            Form::Fitted => format!("fitted on {} configurations", self.fitted_on),
            Form::Borrowed => {
                format!("the study's form, scaled on {} measured here", counted(self.fitted_on, "configuration"))
            }
        };
        format!(
            "Model: time of a message = cpu x copies/(nodes x vCPUs) + volume x copies/nodes + contention x (1 - 1/nodes) + coherency x \
             (nodes - 1);\nqueueing at the busiest part and the universal scalability law, {from}, error of the fit {:.1} %.\n",
            100.0 * self.fit_error
        )
    }

    fn parameter_table(&self) -> Table {
        let mut table = Table::new("term | >us a message");
        for parameter in &self.parameters {
            table.row(vec![parameter.name.clone(), format!("{:.2}", parameter.micros)]);
        }
        table
    }

    fn validation_line(&self, validation: &Validation) -> String {
        format!(
            "Leaving out each {} and predicting it: error {:.1} % (root mean square), mean {:+.1} %, worst {:+.1} %; {} of {} inside of \
             the 90 % band.",
            validation.left_out,
            100.0 * validation.rms,
            100.0 * validation.bias,
            100.0 * validation.worst,
            validation.inside,
            validation.points.len()
        )
    }

    fn predicted_table(&self) -> Table {
        let mut table = Table::new(
            "configuration | machine | >top rate | >90 % band | >one lost | >likely held | >p99 ms | limit | >month | verdict | \
             >measured",
        );
        for one in &self.predicted {
            table.row(vec![
                one.configuration.name(),
                one.configuration.machine.clone(),
                exact(one.top.rate),
                format!("{} - {}", exact(one.top.low), exact(one.top.high)),
                one.top_with_one_lost.map_or("-".to_owned(), |lost| exact(lost.rate)),
                format!("{} - {}", exact(one.held.0), exact(one.held.1)),
                one.p99_ms.map_or("-".to_owned(), three),
                limit_word(one.limit).to_owned(),
                one.month.map_or("-".to_owned(), |month| money(&self.currency, month)),
                verdict_word(one.verdict).to_owned(),
                one.measured.map_or("-".to_owned(), |measured| {
                    format!("{} ({:+.0} %)", exact(measured), 100.0 * (one.top.rate / measured - 1.0))
                }),
            ]);
        }
        table
    }

    /// What stands behind the advice: candidates that were asked for and that it does not name, and how far
    /// off predictions are.
    fn behind(&self) -> Vec<String> {
        self.asked_line().into_iter().chain(self.error_line()).collect()
    }

    /// What is predicted of the candidates that were asked for, where the advice names none of them: it speaks
    /// of what is cheap, and without a price nothing is.
    fn asked_line(&self) -> Option<String> {
        let advice = self.advice();
        let is_untold = |one: &&Predicted| {
            let name = one.configuration.name();
            self.asked.contains(&name) && !advice.contains(&format!(" {name} "))
        };
        let untold: Vec<&Predicted> = self.predicted.iter().filter(is_untold).collect();
        let told: Vec<String> = untold.iter().take(ASKED_MAX).map(|one| self.asked_words(one)).collect();
        let more = match untold.len() - told.len() {
            0 => String::new(),
            more => format!("; {more} more stand in the table"),
        };
        (!told.is_empty()).then(|| format!("Asked for: {}{more}.", told.join("; ")))
    }

    fn asked_words(&self, one: &Predicted) -> String {
        let verdict = match one.verdict {
            Shown::Yes => "is predicted to hold it",
            Shown::NotShown => "may hold it",
            Shown::No => "is predicted not to hold it",
        };
        let price = one.month.map_or(", which has no price,".to_owned(), |month| self.at(month));
        let (known, top) = (&one.configuration, one.top);
        let bound = match one.limit {
            Limit::Model => format!(" ({} to {} within the band)", exact(top.low), exact(top.high)),
            Limit::Disk => ", which is what its disk carries".to_owned(),
            Limit::Network => ", which is what its network carries".to_owned(),
        };
        format!("{} ({}){price} {verdict}, top rate {} msg/s{bound}", known.name(), known.machine, exact(top.rate))
    }

    /// How far off predictions are, where that was tried.
    fn error_line(&self) -> Option<String> {
        let Validation { left_out, rms, worst, .. } = self.validations.first()?;
        Some(format!(
            "Predictions are off by {:.1} % (root mean square), {:+.1} % at worst: each {left_out} was predicted from the others.",
            100.0 * rms,
            100.0 * worst
        ))
    }

    /// What to take or to measure. What was measured to hold it is advised before anything that is
    /// predicted to, and nothing dearer than that is worth a look.
    fn advice(&self) -> String {
        let (shown, may) = (self.cheapest_measured(Shown::Yes), self.cheapest_open());
        let Some(known) = shown else {
            let sure = self.cheapest_predicted(Shown::Yes);
            let nothing = "Nothing that was measured is shown to hold it.";
            return match (sure.map(|one| self.choice_of(one)), may) {
                (Some(sure), Some(may)) if may.month < sure.month => format!(
                    "{nothing} Cheapest predicted to hold it within the band: {}; cheapest worth measuring: {}.",
                    sure.words, may.words
                ),
                (Some(sure), _) => format!("{nothing} Cheapest predicted to hold it within the band: {}.", sure.words),
                (None, Some(may)) => {
                    format!(
                        "{nothing} Nothing is predicted to hold it within the whole band; cheapest worth measuring: {}.",
                        may.words
                    )
                }
                (None, None) => format!("{nothing} Nothing that is priced here is predicted to hold it."),
            };
        };
        let held = known.held.map_or(String::new(), |held| format!(", it matched {} msg/s", exact(held)));
        let (name, price) = (&known.name, known.month.map_or(String::new(), |month| self.at(month)));
        let said = format!("Measured to hold it: {name}{price}{held}.");
        let Some(month) = known.month else { return said };
        let sure = self.cheapest_predicted(Shown::Yes).map(|one| self.choice_of(one));
        let cheaper: Vec<Choice> = sure.into_iter().chain(may).filter(|choice| choice.month < month).collect();
        match cheaper.into_iter().min_by(|a, b| a.month.total_cmp(&b.month)) {
            Some(choice) => format!("{said} Cheaper, and worth measuring: {}.", choice.words),
            None => format!("{said} Nothing cheaper is predicted to hold it."),
        }
    }

    fn at(&self, month: f64) -> String {
        format!(" at {} a month", money(&self.currency, month))
    }

    fn choice_of(&self, one: &Predicted) -> Choice {
        let month = one.month.unwrap_or(f64::MAX);
        let words = format!("{} ({}){}", one.configuration.name(), one.configuration.machine, self.at(month));
        Choice { month, words }
    }

    /// Of what was measured, the cheapest with this verdict; without prices, the one that held
    /// most.
    fn cheapest_measured(&self, verdict: Shown) -> Option<&Known> {
        let of_it = self.measured.iter().filter(|known| known.verdict == verdict);
        of_it.min_by(|a, b| {
            let month = |known: &Known| known.month.unwrap_or(f64::MAX);
            let held = |known: &Known| known.held.unwrap_or(0.0);
            month(a).total_cmp(&month(b)).then(held(b).total_cmp(&held(a)))
        })
    }

    /// Of what nobody measured, the cheapest with this verdict.
    fn cheapest_predicted(&self, verdict: Shown) -> Option<&Predicted> {
        let of_it = self.predicted.iter().filter(|one| one.measured.is_none());
        let of_it = of_it.filter(|one| one.verdict == verdict && one.month.is_some());
        of_it.min_by(|a, b| a.month.unwrap_or(f64::MAX).total_cmp(&b.month.unwrap_or(f64::MAX)))
    }

    /// The cheapest that may hold it: predicted, or measured and not in every respect that is asked
    /// for.
    fn cheapest_open(&self) -> Option<Choice> {
        let measured = self.cheapest_measured(Shown::NotShown).and_then(|known| {
            let month = known.month?;
            let held = known.held.map_or("nothing".to_owned(), |held| format!("{} msg/s", exact(held)));
            let short = known.short_of.map_or(String::new(), |short| format!(" and fell short of {}", exact(short)));
            let words = format!("{}{}, which held {held}{short} where it was measured", known.name, self.at(month));
            Some(Choice { month, words })
        });
        let predicted = self.cheapest_predicted(Shown::NotShown).map(|one| self.choice_of(one));
        measured.into_iter().chain(predicted).min_by(|a, b| a.month.total_cmp(&b.month))
    }

    fn cost_chart(&self) -> Chart {
        let mut groups = Vec::new();
        for one in &self.predicted {
            let Some(month) = one.month else { continue };
            let known = &one.configuration;
            let word = format!("{}: {} to {}", known.cluster, exact(one.top.low), exact(one.top.high));
            add_point(&mut groups, &known.volume, (one.top.rate, month, word));
        }
        dots("Cost against predicted top rate", "predicted top rate, msg/s", "cost a month", &groups)
    }
}

fn validation_table(validation: &Validation) -> Table {
    let mut table = Table::new("configuration | >measured | >predicted | >90 % band | >error | ");
    for (name, measured, of) in &validation.points {
        let is_inside = (of.low..=of.high).contains(measured);
        table.row(vec![
            name.clone(),
            exact(*measured),
            exact(of.rate),
            format!("{} - {}", exact(of.low), exact(of.high)),
            format!("{:+.1} %", 100.0 * (of.rate / measured - 1.0)),
            if is_inside { "" } else { "outside" }.to_owned(),
        ]);
    }
    table
}

fn validation_chart(validation: &Validation) -> Chart {
    let mut groups = Vec::new();
    for (name, measured, of) in &validation.points {
        let (cluster, volume) = name.split_once('/').unwrap_or((name, ""));
        add_point(&mut groups, volume, (*measured, of.rate, cluster.to_owned()));
    }
    dots("Measured against predicted without it", "measured, msg/s", "predicted without it, msg/s", &groups)
}

fn limit_word(limit: Limit) -> &'static str {
    match limit {
        Limit::Model => "cpu, log, agreement",
        Limit::Disk => "disk",
        Limit::Network => "network",
    }
}

fn verdict_word(verdict: Shown) -> &'static str {
    match verdict {
        Shown::Yes => "holds",
        Shown::No => "does not",
        Shown::NotShown => "may hold",
    }
}
