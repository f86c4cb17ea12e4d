//! The chat template, as Hugging Face transformers renders it.

use crate::chat::Message;
use crate::error::{bad_argument, bad_file, one_line, Result};
use crate::jinja::{Program, Value};

pub struct Template {
    program: Program,
    bos_token: String,
    eos_token: String,
}

impl Template {
    pub fn new(source: String, bos_token: String, eos_token: String) -> Result<Template> {
        match Program::new(&source) {
            Ok(program) => Ok(Template { program, bos_token, eos_token }),
            Err(fault) => Err(bad_file(format!("the chat template is not valid Jinja ({})", one_line(&fault.0)))),
        }
    }

    /// The chat up to where its answer begins.
    pub fn render(&self, messages: &[Message]) -> Result<String> {
        let variables = || {
            let text = |text: &String| Value::text(text.as_str());
            let message = |message: &Message| {
                let mut pairs = vec![("role", text(&message.role)), ("content", text(&message.content))];
                pairs.extend(message.others.iter().map(|(name, value)| (name.as_str(), text(value))));
                Value::pairs(pairs)
            };
            vec![
                ("messages", Value::list(messages.iter().map(message).collect())),
                ("add_generation_prompt", Value::Bool(true)),
                ("tools", Value::None),
                ("documents", Value::None),
                ("bos_token", text(&self.bos_token)),
                ("eos_token", text(&self.eos_token)),
            ]
        };
        let refused =
            |reason: &str| bad_argument(format!("the chat template refuses these messages ({})", one_line(&reason)));
        self.program.render(variables).map_err(|fault| refused(&fault.0))
    }
}
