//! A file that comes as a form, as `curl -F file=@definitions.json` and RabbitMQ's own page send it.
//!
//! Invariant: a body that is no form is passed on as it is.

use crate::answer::Refused;
use crate::fields::cut;
use bytes::Bytes;
use http_body_util::{BodyDataStream, Full};
use multer::Multipart;

/// The field that holds the file.
const FILE: &str = "file";

/// What is in the field `file` of a form, or the body itself where its type says that it is none. Errors: 400 for a form that
/// is not whole, that has no such field or two, or that has others, as they would be ignored.
pub(crate) async fn file(content_type: Option<&[u8]>, body: Bytes) -> Result<Bytes, Refused> {
    let wrong = |why: String| Refused::BadRequest(format!("multipart/form-data: {why}"));
    let named = content_type.and_then(|named| std::str::from_utf8(named).ok()).unwrap_or_default();
    if !named.get(..9).is_some_and(|kind| kind.eq_ignore_ascii_case("multipart")) {
        return Ok(body);
    }
    let boundary = multer::parse_boundary(named).map_err(|why| wrong(why.to_string()))?;
    let mut form = Multipart::new(BodyDataStream::new(Full::new(body)), boundary);
    let mut found = None;
    while let Some(field) = form.next_field().await.map_err(|why| wrong(why.to_string()))? {
        let name = field.name().unwrap_or_default().to_owned();
        if name != FILE {
            return Err(wrong(format!("unknown field {:?}; the field is {FILE}", cut(&name))));
        }
        if found.replace(field.bytes().await.map_err(|why| wrong(why.to_string()))?).is_some() {
            return Err(wrong(format!("the field {FILE} comes twice")));
        }
    }
    found.ok_or_else(|| wrong(format!("there is no field {FILE}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORM: &[u8] = b"multipart/form-data; boundary=hay";

    fn read(content_type: Option<&[u8]>, body: &str) -> Result<String, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime starts");
        let body = Bytes::copy_from_slice(body.as_bytes());
        let text = |bytes: Bytes| String::from_utf8(bytes.to_vec()).expect("it was text");
        runtime.block_on(file(content_type, body)).map(text).map_err(|refused| match refused {
            Refused::BadRequest(why) => why,
            other => panic!("{other:?}"),
        })
    }

    fn part(name: &str, content: &str) -> String {
        let head = format!("content-disposition: form-data; name=\"{name}\"; filename=\"d.json\"");
        format!("--hay\r\n{head}\r\ncontent-type: application/octet-stream\r\n\r\n{content}\r\n")
    }

    #[test]
    fn the_file_of_a_form_is_what_counts_and_other_bodies_stay() {
        let sent = "{\"users\": []}\r\n--hay";
        for plain in [None, Some(&b"application/json"[..]), Some(b"multi"), Some(b"\xff")] {
            assert_eq!(read(plain, sent), Ok(sent.to_owned()));
        }
        let form = format!("{}--hay--\r\n", part("file", "{\"users\": []}"));
        assert_eq!(read(Some(FORM), &form), Ok("{\"users\": []}".to_owned()));
        assert_eq!(read(Some(b"Multipart/Form-Data; boundary=\"hay\""), &form), Ok("{\"users\": []}".to_owned()));
    }

    #[test]
    fn a_form_that_is_none_is_refused_with_what_it_lacks() {
        let twice = format!("{0}{0}--hay--\r\n", part("file", "{}"));
        let cases: [(&[u8], String, &str); 5] = [
            (b"multipart/form-data", part("file", "{}"), "multipart/form-data: "),
            (FORM, "--hay--\r\n".to_owned(), "multipart/form-data: there is no field file"),
            (FORM, twice, "multipart/form-data: the field file comes twice"),
            (
                FORM,
                format!("{}--hay--\r\n", part("redirect", "elsewhere")),
                "multipart/form-data: unknown field \"redirect\"; the field is file",
            ),
            // Cut off: its end is missing.
            (FORM, part("file", "{}"), "multipart/form-data: "),
        ];
        for (content_type, body, why) in cases {
            let told = read(Some(content_type), &body).expect_err(&body);
            assert!(told.starts_with(why), "{told}");
        }
    }
}
