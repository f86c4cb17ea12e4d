//! What stands around calls between their marks. A model was trained on the white space that its chat template writes.

use super::families::{Family, Form};

const MOST: usize = 16; // bytes that a template may write there

/// The text before the first call, between two calls of a list, and behind the last one.
#[derive(Clone)]
pub struct Around {
    pub before: String,
    pub between: String,
    pub behind: String,
}

impl Around {
    pub fn usual(form: Form) -> Around {
        let (before, between, behind) = match form {
            Form::Json { is_list: true } | Form::Actions => ("[", ", ", "]"),
            Form::Json { is_list: false } => ("\n", "", "\n"),
            Form::Xml => ("\n", "", ""),
            Form::Python { before } => (before, "", ""),
            Form::PythonAlone => ("[", "", ""),
            Form::JsonAlone | Form::Braces { .. } | Form::Args => ("", "", ""),
        };
        Around { before: before.to_owned(), between: between.to_owned(), behind: behind.to_owned() }
    }

    /// The same with the white space of a chat that a template has rendered, in which this function is called.
    pub fn as_in(rendered: &str, family: &Family, function: &str) -> Around {
        let mut around = Around::usual(family.form);
        let call = match family.form {
            Form::Json { .. } => format!("{{\"name\": \"{function}\", \"arguments\": "),
            Form::Actions => "{\"tool_call_id\": \"".to_owned(),
            Form::Xml => format!("<function={function}>"),
            Form::Python { .. } => format!("{function}("),
            Form::JsonAlone | Form::PythonAlone | Form::Braces { .. } | Form::Args => return around,
        };
        let is_same = |text: &str, usual: &str| {
            text.len() <= MOST.max(usual.len()) && text.split_whitespace().eq(usual.split_whitespace())
        };
        let found = rendered.split(family.open).skip(1).find_map(|text| {
            let (before, rest) = text.split_once(&call)?;
            is_same(before, &around.before).then_some((before, rest))
        });
        let Some((before, rest)) = found else { return around };
        around.before = before.to_owned();
        if let Some(space) = before.strip_prefix('[').filter(|space| !space.is_empty() && !around.between.is_empty()) {
            around.between = format!(",{space}");
        }
        let closed = rest.split_once(family.close).filter(|_| family.is_json() && !family.close.is_empty());
        if let Some((_, behind)) = closed.and_then(|(call, _)| call.rsplit_once('}')) {
            if is_same(behind, &around.behind) {
                around.behind = behind.to_owned();
            }
        }
        around
    }
}
