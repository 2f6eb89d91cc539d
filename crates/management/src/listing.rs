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
    let decides = |name: &str| call.query(name).is_some_and(|value| !value.is_empty());
    if decides("name") || decides("sort") || call.flag("sort_reverse") {
        return None;
    }
    let number = |text: String| text.parse::<usize>().ok().filter(|number| *number > 0);
    let page = number(call.query("page")?)?;
    let size = call.query("page_size").map_or(Some(PAGE_SIZE_DEFAULT), number).filter(|size| *size <= PAGE_SIZE_MAX)?;
    Some((page - 1).saturating_mul(size)..page.saturating_mul(size))
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
    let says = |name: &str| call.query(name).filter(|value| !value.is_empty());
    if ["name", "sort", "page"].iter().all(|name| says(name).is_none()) && !call.flag("sort_reverse") {
        let columns = says("columns");
        let choose = |item| chosen(item, columns.as_deref());
        return self::all(all, |part| describe(part).into_iter().map(choose).collect()).await;
    }
    if let (Some(sort), Some(_)) = (says("sort"), says("page")) {
        return sorted_page(call, all, &sort, describe).await;
    }
    let (page, mut items) = (page(call), Vec::with_capacity(all.len()));
    for (number, part) in all.chunks(PART).enumerate() {
        let first = number * PART;
        if page.as_ref().is_none_or(|page| page.start < first + part.len() && first < page.end) {
            items.extend(describe(part));
            tokio::task::yield_now().await;
        } else {
            // It is on no page that is shown.
            items.resize(items.len() + part.len(), Value::Null);
        }
    }
    Ok(Answer::json(&list(call, items)?))
}

/// One page of a list in some order. All of it is described as far as the order needs, and what is
/// on the page as a whole.
async fn sorted_page<T>(
    call: &Call<'_>,
    all: &[T],
    sort: &str,
    describe: impl Fn(&[T]) -> Vec<Value>,
) -> Result<Answer, Refused> {
    let mut items = Vec::with_capacity(all.len());
    for (number, part) in all.chunks(PART).enumerate() {
        *call.narrow.borrow_mut() = Some(format!("{sort},name"));
        for (place, one) in part.iter().enumerate() {
            // What has gone meanwhile is not described.
            let described = describe(std::slice::from_ref(one)).into_iter().next();
            items.extend(described.map(|item| keyed(&item, sort, number * PART + place)));
        }
        *call.narrow.borrow_mut() = None;
        tokio::task::yield_now().await;
    }
    let mut paged = arranged(call, items, None)?;
    if let Some(shown) = paged.get_mut("items").and_then(Value::as_array_mut) {
        let columns = call.query("columns").filter(|columns| !columns.is_empty());
        let places: Vec<u64> = shown.iter().filter_map(|item| item[PLACE].as_u64()).collect();
        let found = places.into_iter().flat_map(|place| describe(std::slice::from_ref(&all[place as usize])));
        *shown = found.map(|item| chosen(item, columns.as_deref())).collect();
        paged["item_count"] = paged["items"].as_array().map_or(0, Vec::len).into();
    }
    Ok(Answer::json(&paged))
}

/// Where an item that stands for another has the place of it.
const PLACE: &str = "\0place";

/// What of an item its order and its name decide.
fn keyed(item: &Value, sort: &str, place: usize) -> Value {
    let mut kept = chosen(item.clone(), Some(&format!("name,{sort}")));
    kept[PLACE] = place.into();
    kept
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

/// The list as the query of `call` wants it.
pub(crate) fn list(call: &Call<'_>, items: Vec<Value>) -> Result<Value, Refused> {
    let columns = call.query("columns").filter(|columns| !columns.is_empty());
    arranged(call, items, columns.as_deref())
}

/// Those that the query of `call` wants, in its order and on its page, with these columns.
fn arranged(call: &Call<'_>, mut items: Vec<Value>, columns: Option<&str>) -> Result<Value, Refused> {
    let total = items.len();
    if let Some(name) = call.query("name").filter(|name| !name.is_empty()) {
        let pattern = match call.flag("use_regex") {
            false => None,
            true => {
                let wrong = || Refused::BadRequest("invalid regex".to_owned());
                // Large letters and small ones are the same, as in RabbitMQ and as without a pattern.
                Some(Pattern::new(&format!("(?i){name}")).map_err(|_| wrong())?)
            }
        };
        let lower = name.to_lowercase();
        // Others wait for this thread, so a pattern has a time for the whole list.
        let meter = Meter::of_filter();
        let mut is_in_time = true;
        items.retain(|item| {
            // A connection has the name that its client chose too: people look for that one.
            let mut names = NAMES.iter().filter_map(|field| item.get(*field)?.as_str());
            names.any(|own| match &pattern {
                Some(pattern) if is_in_time => match pattern.find(own.as_bytes()) {
                    Ok(found) => {
                        is_in_time = meter.goes_on();
                        found
                    }
                    Err(_) => {
                        is_in_time = false;
                        false
                    }
                },
                Some(_) => false,
                None => own.to_lowercase().contains(&lower),
            })
        });
        if !is_in_time {
            return Err(Refused::BadRequest("regex takes too long".to_owned()));
        }
    }
    if let Some(column) = call.query("sort").filter(|column| !column.is_empty()) {
        // What is not there comes before everything else, as in RabbitMQ: a queue without traffic has no
        // rates, and stands behind those that have.
        let nothing = Value::from(0);
        items.sort_by(|a, b| order(find(a, &column).unwrap_or(&nothing), find(b, &column).unwrap_or(&nothing)));
    }
    if call.flag("sort_reverse") {
        items.reverse();
    }
    let paged = match call.query("page") {
        None => Value::Array(items.into_iter().map(|item| chosen(item, columns)).collect()),
        Some(page) => {
            let (page, size) = wanted_page(&page, call.query("page_size").as_deref())?;
            let filtered = items.len();
            let page_count = filtered.div_ceil(size);
            if page > page_count.max(1) {
                let reason = format!("Page out of range, page: {page} page size: {size}, len: {filtered}");
                return Err(Refused::WrongPage("page_out_of_range", reason));
            }
            let shown: Vec<Value> = items.into_iter().skip((page - 1) * size).take(size).collect();
            json!({
                "filtered_count": filtered,
                "item_count": shown.len(),
                "items": shown.into_iter().map(|item| chosen(item, columns)).collect::<Vec<_>>(),
                "page": page,
                "page_count": page_count,
                "page_size": size,
                "total_count": total,
            })
        }
    };
    Ok(paged)
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
