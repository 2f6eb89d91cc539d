//! Lists as their caller wants them: some columns, in an order, a page at a time, by name.
//!
//! Invariant: without parameters a list is as it was made. What is asked for wrongly is refused,
//! never guessed.

use crate::answer::{Answer, JSON, Refused};
use crate::call::Call;
use broker::topology::Pattern;
use serde::Serialize;
use serde_json::{Map, Value, json};
use server::patterns::Meter;
use std::cmp::Ordering;
use std::ops::Range;

/// Most items of one page, as in RabbitMQ.
const PAGE_SIZE_MAX: usize = 500;
/// Items of a page unless the caller says it.
const PAGE_SIZE_DEFAULT: usize = 100;

/// The places of the page that the query of `call` wants, where nothing but its number decides what
/// is on it: a list need not describe the others. What is wrong with the query is left to [`list`].
pub(crate) fn page(call: &Call<'_>) -> Option<Range<usize>> {
    if says(call, "name").is_some() { None } else { page_of_named(call) }
}

/// The same in a list that was filtered by name.
pub(crate) fn page_of_named(call: &Call<'_>) -> Option<Range<usize>> {
    if says(call, "sort").is_some() || call.flag("sort_reverse") {
        return None;
    }
    let number = |text: String| text.parse::<usize>().ok().filter(|number| *number > 0);
    let page = number(call.query("page")?)?;
    let size = call.query("page_size").map_or(Some(PAGE_SIZE_DEFAULT), number).filter(|size| *size <= PAGE_SIZE_MAX)?;
    Some((page - 1).saturating_mul(size)..page.saturating_mul(size))
}

/// A parameter of the query that says something.
fn says(call: &Call<'_>, name: &str) -> Option<String> {
    call.query(name).filter(|value| !value.is_empty())
}

/// The things of a list that have a name which the query looks for, and how many there are with others.
pub(crate) struct Named<T> {
    pub(crate) items: Vec<T>,
    total: usize,
}

impl<T> Named<T> {
    /// Whether it lacks some, and has no more than a page may have.
    pub(crate) fn is_short(&self) -> bool {
        self.items.len() < self.total && self.items.len() <= PAGE_SIZE_MAX
    }
}

/// Those of `all` whose name the query of `call` looks for: of the others nothing is described. Errors: 400 for a pattern
/// that is none, or takes too long.
pub(crate) fn by_name<T>(call: &Call<'_>, mut all: Vec<T>, name: impl Fn(&T) -> &[u8]) -> Result<Named<T>, Refused> {
    let total = all.len();
    if let Some(sought) = Sought::of(call)? {
        sought.keep(&mut all, |item| sought.finds(&String::from_utf8_lossy(name(item))))?;
    }
    Ok(Named { items: all, total })
}

/// What `name` and `use_regex` of a query look for.
struct Sought {
    lower: String,
    pattern: Option<Pattern>,
    /// Others wait for this thread, so a pattern has a time for the whole list.
    meter: Meter,
}

impl Sought {
    /// `None` where everything is wanted. Errors: 400 for a pattern that is none.
    fn of(call: &Call<'_>) -> Result<Option<Sought>, Refused> {
        let Some(name) = says(call, "name") else { return Ok(None) };
        let pattern = match call.flag("use_regex") {
            false => None,
            true => {
                let wrong = || Refused::BadRequest("invalid regex".to_owned());
                // Large letters and small ones are the same, as in RabbitMQ and as without a pattern.
                Some(Pattern::new(&format!("(?i){name}")).map_err(|_| wrong())?)
            }
        };
        Ok(Some(Sought { lower: name.to_lowercase(), pattern, meter: Meter::of_filter() }))
    }

    /// Whether this name is looked for. Errors: 400 where that takes too long.
    fn finds(&self, name: &str) -> Result<bool, Refused> {
        let Some(pattern) = &self.pattern else { return Ok(name.to_lowercase().contains(&self.lower)) };
        let late = || Refused::BadRequest("regex takes too long".to_owned());
        let found = pattern.find(name.as_bytes()).map_err(|_| late())?;
        if self.meter.goes_on() { Ok(found) } else { Err(late()) }
    }

    /// Keeps those that are wanted. Errors: as of `is_wanted`.
    fn keep<T>(&self, all: &mut Vec<T>, is_wanted: impl Fn(&T) -> Result<bool, Refused>) -> Result<(), Refused> {
        let mut done = Ok(());
        all.retain(|item| {
            done.is_ok()
                && is_wanted(item).unwrap_or_else(|refused| {
                    done = Err(refused);
                    false
                })
        });
        done
    }
}

/// So many things are described at a time: one thread answers everybody, and those who change them
/// wait while they are looked at.
const PART: usize = 128;

/// The list of what `describe` says of each of `all`, as the query of `call` wants it. It is made a
/// part at a time, and others have their turns in between; what has gone meanwhile `describe`
/// leaves out.
pub(crate) async fn answer<T>(
    call: &Call<'_>,
    all: &[T],
    describe: impl Fn(&[T]) -> Vec<Value>,
) -> Result<Answer, Refused> {
    if says(call, "name").is_none() {
        return shown(call, (all, all.len()), describe).await;
    }
    let mut named: Vec<(usize, Vec<String>)> = Vec::new();
    for (number, part) in all.chunks(PART).enumerate() {
        let items = narrowly(call, NAMES.join(","), || each(part, &describe));
        let names = |item: Value| names_of(&item).map(str::to_owned).collect();
        named.extend(items.into_iter().map(|(place, item)| (number * PART + place, names(item))));
        tokio::task::yield_now().await;
    }
    let total = named.len();
    if let Some(sought) = Sought::of(call)? {
        sought.keep(&mut named, |(_, names)| any(names.iter(), |name| sought.finds(name)))?;
    }
    let places: Vec<usize> = named.into_iter().map(|(place, _)| place).collect();
    let at = |place: &usize| describe(std::slice::from_ref(&all[*place]));
    shown(call, (&places, total), |part| part.iter().flat_map(at).collect()).await
}

/// The same of a list that was filtered by name.
pub(crate) async fn answer_named<T>(
    call: &Call<'_>,
    named: &Named<T>,
    describe: impl Fn(&[T]) -> Vec<Value>,
) -> Result<Answer, Refused> {
    shown(call, (&named.items, named.total), describe).await
}

/// A list that was filtered by name, of so many in total, as the query of `call` wants it otherwise.
async fn shown<T>(
    call: &Call<'_>,
    (all, total): (&[T], usize),
    describe: impl Fn(&[T]) -> Vec<Value>,
) -> Result<Answer, Refused> {
    let (columns, sort, is_reversed) = (says(call, "columns"), says(call, "sort"), call.flag("sort_reverse"));
    let choose = |item| chosen(item, columns.as_deref());
    let is_ordered = sort.is_some() || is_reversed;
    let page = call.query("page").filter(|page| !page.is_empty() || is_ordered || says(call, "name").is_some());
    let Some(page) = page else {
        if !is_ordered {
            return self::all(all, |part| describe(part).into_iter().map(choose).collect()).await;
        }
        let mut items = Vec::with_capacity(all.len());
        for part in all.chunks(PART) {
            items.extend(describe(part));
            tokio::task::yield_now().await;
        }
        in_order(&mut items, sort.as_deref(), is_reversed);
        return Ok(Answer::json(&items.into_iter().map(choose).collect()));
    };
    let mut places: Vec<(usize, Value)> = match &sort {
        None => (0..all.len()).map(|place| (place, Value::Null)).collect(),
        Some(sort) => keyed(call, all, sort, &describe).await,
    };
    if sort.is_some() {
        places.sort_by(|(_, a), (_, b)| order(a, b));
    }
    if is_reversed {
        places.reverse();
    }
    let gone = all.len() - places.len();
    let window = Window::of(call, &page, places.len())?;
    let on_page = places[window.places()].iter();
    let items: Vec<Value> = on_page.flat_map(|(place, _)| describe(std::slice::from_ref(&all[*place]))).collect();
    Ok(Answer::json(&window.told(items.into_iter().map(choose).collect(), total - gone)))
}

/// Of each thing what decides its place in an order, and which it is.
async fn keyed<T>(
    call: &Call<'_>,
    all: &[T],
    sort: &str,
    describe: &impl Fn(&[T]) -> Vec<Value>,
) -> Vec<(usize, Value)> {
    let mut keys = Vec::with_capacity(all.len());
    for (number, part) in all.chunks(PART).enumerate() {
        let items = narrowly(call, format!("{sort},name"), || each(part, describe));
        let key = |item: Value| find(&item, sort).cloned().unwrap_or_else(nothing);
        keys.extend(items.into_iter().map(|(place, item)| (number * PART + place, key(item))));
        tokio::task::yield_now().await;
    }
    keys
}

/// What is made while nobody looks at other columns than these.
fn narrowly<R>(call: &Call<'_>, columns: String, make: impl FnOnce() -> R) -> R {
    *call.narrow.borrow_mut() = Some(columns);
    let made = make();
    *call.narrow.borrow_mut() = None;
    made
}

/// What is said of each of these, by its place among them. What has gone meanwhile is left out.
fn each<T>(part: &[T], describe: &impl Fn(&[T]) -> Vec<Value>) -> Vec<(usize, Value)> {
    let items = describe(part);
    if items.len() == part.len() {
        return items.into_iter().enumerate().collect();
    }
    let one = |(place, one)| Some((place, describe(std::slice::from_ref(one)).into_iter().next()?));
    part.iter().enumerate().filter_map(one).collect()
}

/// The list of what `describe` says of each of `all`, as it is: so it need not be there as a whole but
/// as its text.
pub(crate) async fn all<T>(all: &[T], describe: impl Fn(&[T]) -> Vec<Value>) -> Result<Answer, Refused> {
    written(all, |part, text| describe(part).iter().for_each(|item| text.push(item))).await
}

/// Whether the query of `call` wants a list as it is made: whole, in its own order, with all columns.
pub(crate) fn is_whole(call: &Call<'_>) -> bool {
    let says = |name: &&str| call.raw_query(name).is_some_and(|value| !value.is_empty());
    !["name", "sort", "page", "columns", "sort_reverse"].iter().any(says)
}

/// The text of a list while it is written.
pub(crate) struct Text {
    bytes: Vec<u8>,
    /// An item could not be written.
    failed: bool,
}

impl Text {
    /// Puts an item behind the others.
    pub(crate) fn push(&mut self, item: &impl Serialize) {
        if self.bytes.len() > 1 {
            self.bytes.push(b',');
        }
        self.failed |= serde_json::to_writer(&mut self.bytes, item).is_err();
    }
}

/// The list of what `write` puts down of each of `all`. It is made a part at a time, as [`answer`] is.
pub(crate) async fn written<T>(all: &[T], write: impl Fn(&[T], &mut Text)) -> Result<Answer, Refused> {
    let mut text = Text { bytes: vec![b'['], failed: false };
    for (number, part) in all.chunks(PART).enumerate() {
        write(part, &mut text);
        if text.failed {
            return Err(Refused::NoAnswer);
        }
        if number == 0 {
            // The others are about as long: megabytes are not moved each time that they are doubled.
            text.bytes.reserve(text.bytes.len() * (all.len() / PART));
        }
        tokio::task::yield_now().await;
    }
    text.bytes.push(b']');
    Ok(Answer::text(text.bytes.into(), JSON))
}

/// The fields in which `name` is looked for.
const NAMES: [&str; 2] = ["name", "user_provided_name"];

/// What an item is called. A connection has the name that its client chose too: people look for that one.
fn names_of(item: &Value) -> impl Iterator<Item = &str> {
    NAMES.iter().filter_map(|field| item.get(*field)?.as_str())
}

/// Whether any of these is. Errors: the first.
fn any<I>(mut items: impl Iterator<Item = I>, is: impl Fn(I) -> Result<bool, Refused>) -> Result<bool, Refused> {
    items.try_fold(false, |found, item| Ok(found || is(item)?))
}

/// The list as the query of `call` wants it.
pub(crate) fn list(call: &Call<'_>, mut items: Vec<Value>) -> Result<Value, Refused> {
    let (columns, total) = (says(call, "columns"), items.len());
    if let Some(sought) = Sought::of(call)? {
        sought.keep(&mut items, |item| any(names_of(item), |name| sought.finds(name)))?;
    }
    in_order(&mut items, says(call, "sort").as_deref(), call.flag("sort_reverse"));
    let choose = |item| chosen(item, columns.as_deref());
    let Some(page) = call.query("page") else { return Ok(items.into_iter().map(choose).collect()) };
    let window = Window::of(call, &page, items.len())?;
    let on_page = items.drain(window.places()).map(choose).collect();
    Ok(window.told(on_page, total))
}

/// What is not there comes before everything else, as in RabbitMQ: a queue without traffic has no rates, and stands behind
/// those that have.
fn nothing() -> Value {
    Value::from(0)
}

/// Puts items in the order of a column, or leaves them in theirs, and perhaps turns that round.
fn in_order(all: &mut [Value], sort: Option<&str>, is_reversed: bool) {
    if let Some(column) = sort {
        let nothing = nothing();
        all.sort_by(|a, b| order(find(a, column).unwrap_or(&nothing), find(b, column).unwrap_or(&nothing)));
    }
    if is_reversed {
        all.reverse();
    }
}

/// A page of a list that has so many items.
struct Window {
    page: usize,
    size: usize,
    count: usize,
}

impl Window {
    /// The one that is wanted. Errors: RabbitMQ's for one that there is not.
    fn of(call: &Call<'_>, page: &str, count: usize) -> Result<Window, Refused> {
        let (page, size) = wanted_page(page, call.query("page_size").as_deref())?;
        if page > count.div_ceil(size).max(1) {
            let reason = format!("Page out of range, page: {page} page size: {size}, len: {count}");
            return Err(Refused::WrongPage("page_out_of_range", reason));
        }
        Ok(Window { page, size, count })
    }

    /// What is on it.
    fn places(&self) -> Range<usize> {
        let first = ((self.page - 1) * self.size).min(self.count);
        first..(first + self.size).min(self.count)
    }

    /// The answer with these items of so many that there were before a name was looked for.
    fn told(&self, items: Vec<Value>, total: usize) -> Value {
        json!({
            "filtered_count": self.count,
            "item_count": items.len(),
            "items": items,
            "page": self.page,
            "page_count": self.count.div_ceil(self.size),
            "page_size": self.size,
            "total_count": total,
        })
    }
}

/// The page that is wanted, and how many items one has. Errors: RabbitMQ's for what cannot be wanted.
fn wanted_page(page: &str, size: Option<&str>) -> Result<(usize, usize), Refused> {
    let read = |text: &str| {
        text.parse::<i64>().map_err(|_| Refused::BadRequest("Pagination parameters are invalid".to_owned()))
    };
    let (number, asked) = (read(page)?, size.map(read).transpose()?);
    let size = asked.map_or(Some(PAGE_SIZE_DEFAULT), |size| usize::try_from(size).ok());
    let size = size.filter(|size| (1..=PAGE_SIZE_MAX).contains(size));
    match (usize::try_from(number).ok().filter(|number| *number > 0), size) {
        (Some(page), Some(size)) => Ok((page, size)),
        _ => {
            let asked = asked.map_or_else(|| "undefined".to_owned(), |size| size.to_string());
            let reason = format!("Invalid pagination parameters: page number {number}, page size {asked}");
            Err(Refused::WrongPage("invalid_pagination_parameters", reason))
        }
    }
}

/// One thing with the columns that the query of `call` wants.
pub(crate) fn one(call: &Call<'_>, item: Value) -> Value {
    chosen(item, call.query("columns").filter(|columns| !columns.is_empty()).as_deref())
}

/// What is under a name with dots, as `message_stats.publish`.
fn find<'v>(item: &'v Value, column: &str) -> Option<&'v Value> {
    column.split('.').try_fold(item, |value, part| value.get(part))
}

/// What is under these names, with dots for what is further in. Of a list each item is looked into, and what has
/// no names stays as it is.
fn chosen(item: Value, columns: Option<&str>) -> Value {
    let Some(columns) = columns else { return item };
    let columns: Vec<Vec<&str>> = columns.split(',').map(|column| column.split('.').collect()).collect();
    cut(item, &columns.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

fn cut(item: Value, wanted: &[&[&str]]) -> Value {
    match item {
        Value::Object(fields) => {
            let mut kept = Map::new();
            for (name, value) in fields {
                let of_it = wanted.iter().filter(|column| column.first() == Some(&name.as_str()));
                let further: Vec<&[&str]> = of_it.map(|column| &column[1..]).collect();
                if further.is_empty() {
                    continue;
                }
                let is_whole = further.iter().any(|rest| rest.is_empty());
                kept.insert(name, if is_whole { value } else { cut(value, &further) });
            }
            Value::Object(kept)
        }
        Value::Array(items) => items.into_iter().map(|item| cut(item, wanted)).collect(),
        other => other,
    }
}

/// Numbers by size, texts by their letters, and things of different kinds by kind.
fn order(a: &Value, b: &Value) -> Ordering {
    let rank = |value: &Value| match value {
        Value::Number(_) => 0,
        Value::Bool(_) => 1,
        Value::Null => 2,
        Value::String(_) => 3,
        Value::Array(_) => 4,
        Value::Object(_) => 5,
    };
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => a.as_f64().unwrap_or(0.0).total_cmp(&b.as_f64().unwrap_or(0.0)),
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        _ => rank(a).cmp(&rank(b)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_with_dots_keep_their_places() {
        let item = json!({"name": "q", "stats": {"publish": 1, "ack": 2}, "x": 3});
        assert_eq!(chosen(item.clone(), Some("name,stats.ack,none")), json!({"name": "q", "stats": {"ack": 2}}));
        assert_eq!(chosen(item.clone(), None), item);
    }

    #[test]
    fn columns_look_into_the_items_of_lists() {
        let item = json!({"node": "n", "listeners": [{"port": 1, "protocol": "a"}, {"port": 2}], "ports": [1, 2]});
        let kept = json!({"listeners": [{"port": 1}, {"port": 2}], "ports": [1, 2]});
        assert_eq!(chosen(item.clone(), Some("listeners.port,ports.x")), kept);
        assert_eq!(chosen(item, Some("listeners.port.x,listeners"))["listeners"][0]["protocol"], "a");
    }

    #[test]
    fn numbers_are_ordered_by_size_and_texts_by_letters() {
        assert_eq!(order(&json!(9), &json!(10)), Ordering::Less);
        assert_eq!(order(&json!("9"), &json!("10")), Ordering::Greater);
        assert_eq!(order(&json!(1), &json!("a")), Ordering::Less);
    }
}
