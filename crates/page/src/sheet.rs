//! The page around everything: style, scripts, the switch between light and dark.
//!
//! Invariant: nothing on a page has an address, and a policy on the page forbids the browser to ask
//! anybody. Without scripts the answer, the tiles and all tables are there; only the charts are
//! not.

use crate::escape;

const STYLE: &str = include_str!("../assets/page.css");
const DARK: &str = include_str!("../assets/dark.css");
const SCRIPT: &str = include_str!("../assets/page.js");
const LIVE: &str = include_str!("../assets/live.js");
const CHARTS: &str = include_str!("../vendored/uplot/uPlot.iife.min.js");
const CHARTS_STYLE: &str = include_str!("../vendored/uplot/uPlot.min.css");
const CHARTS_LICENCE: &str = include_str!("../vendored/uplot/LICENSE");

/// Puts `body` on a page. What draws charts is on it only where there is one.
pub fn page(title: &str, body: &str) -> String {
    let title = escape(title);
    let draws = body.contains("class=\"chart\"");
    let (charts_style, charts) = match draws {
        true => (CHARTS_STYLE, format!("<script>\n/* uPlot:\n{CHARTS_LICENCE}*/\n{CHARTS}\n</script>\n")),
        false => ("", String::new()),
    };
    let style = STYLE.replace("/*DARK*/", DARK.trim_end());
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n\
         <title>{title}</title>\n<style>{charts_style}\n{style}</style></head>\n<body>\n<header><h1>{title}</h1>\
         <button type=\"button\" id=\"theme\" hidden>light or dark</button></header>\n<main>\n{body}</main>\n\
         <noscript><p class=\"faint\">Charts are drawn by a script, which is in this file; the tables hold their figures.</p></noscript>\n\
         {charts}<script>\n{SCRIPT}</script>\n</body></html>\n"
    )
}

/// A page that is loaded again every so many seconds: a file that grows.
pub fn reloaded(page: &str, every_s: u32) -> String {
    page.replacen("<title>", &format!("<meta http-equiv=\"refresh\" content=\"{every_s}\">\n<title>"), 1)
}

/// A page that is served, and asks whoever served it for the next one every so many milliseconds: it takes the
/// place of the one before under the reader's eyes.
pub fn live(page: &str, every_ms: u64) -> String {
    let meta = format!("<meta name=\"live\" content=\"{every_ms}\">\n<title>");
    let page =
        page.replacen("'unsafe-inline'\">", "'unsafe-inline'; connect-src 'self'\">", 1).replacen("<title>", &meta, 1);
    page.replacen("</body></html>", &format!("<script>\n{LIVE}</script>\n</body></html>"), 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest as _, Sha256};

    #[test]
    fn what_is_vendored_is_what_was_taken_and_its_licence_is_on_every_page_that_has_it() {
        let told = include_str!("../vendored/uplot/README.md");
        for (name, text) in
            [("uPlot.iife.min.js", CHARTS), ("uPlot.min.css", CHARTS_STYLE), ("LICENSE", CHARTS_LICENCE)]
        {
            let sum: String = Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect();
            assert!(told.contains(&format!("| `{name}` | `{sum}` |")), "{name} is {sum}");
        }
        assert!(CHARTS.contains("v1.6.32") && told.contains("uPlot 1.6.32"));
        let drawn = page("x", "<figure class=\"chart\"></figure>");
        assert!(drawn.contains("Copyright (c) 2022 Leon Sorokin") && drawn.contains(CHARTS));
        assert!(!page("x", "<p></p>").contains("uPlot:"), "nothing to draw, nothing to carry");
    }

    #[test]
    fn a_page_asks_nobody_and_its_scripts_end_where_they_should() {
        let page = page("A <b>", "<figure class=\"chart\"></figure>");
        assert!(page.contains("<title>A &lt;b&gt;</title>") && page.contains("default-src 'none'"));
        for outside in [" src=", " href=", "@import", "url(", "fetch(", "XMLHttpRequest", "import(", "WebSocket"] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert_eq!(page.matches("</script>").count(), 2);
        assert_eq!(page.matches("/*DARK*/").count(), 0);
    }

    #[test]
    fn only_a_page_that_is_served_asks_and_only_whoever_served_it() {
        let page = page("x", "<figure class=\"chart\"></figure>");
        let served = live(&page, 1000);
        assert!(
            served.contains("script-src 'unsafe-inline'; connect-src 'self'\">")
                && served.contains("fetch(location.href)")
        );
        assert_eq!(served.matches("<meta name=\"live\" content=\"1000\">").count(), 1);
        assert_eq!(served.matches("</script>").count(), 3);
        assert!(reloaded(&page, 20).contains("<meta http-equiv=\"refresh\" content=\"20\">\n<title>x</title>"));
    }

    #[test]
    fn light_dark_and_the_switch_have_the_same_colours_to_set() {
        let variables = |text: &str| -> Vec<String> {
            let names = text.split(';').filter_map(|part| part.split(':').next());
            names.map(|name| name.trim().to_owned()).filter(|name| name.starts_with("--")).collect()
        };
        let light = STYLE.split(":root {").nth(1).and_then(|rest| rest.split('}').next()).expect("the light ones");
        assert_eq!(variables(light), variables(DARK));
        assert_eq!(STYLE.matches("/*DARK*/").count(), 2, "by the reader's system, and by the switch");
    }
}
