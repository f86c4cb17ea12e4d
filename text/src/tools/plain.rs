//! Tools for a model whose chat template has none: in the system message, and calls and results as text.

use crate::json::Json;
use crate::message::{Message, MODEL};

use super::families::PLAIN;

/// The same chat without tools, calls and turns of tools. Without `takes_system`, what would be in the system message
/// is in front of the first question.
pub fn as_text(messages: &[Message], tools: &[Json], takes_system: bool) -> Vec<Message> {
    let (open, close) = (PLAIN.open, PLAIN.close);
    let list: Vec<String> = tools.iter().map(Json::spaced).collect();
    let system = format!(
        "You may call functions to answer. These are available:\n<tools>\n{}\n</tools>\nFor each call, write a JSON \
         object with the function's name and its arguments between {open} and {close}:\n{open}\n{{\"name\": \
         function, \"arguments\": {{name: value}}}}\n{close}",
        list.join("\n")
    );
    let (first, rest) = match messages.split_first() {
        Some((first, rest)) if first.role() == "system" => (format!("{}\n\n{system}", first.content()), rest),
        _ => (system, messages),
    };
    let mut all: Vec<Message> = takes_system.then(|| Message::new("system", &first)).into_iter().collect();
    let mut is_result = false; // the message before is one
    for message in rest {
        let was_result = std::mem::replace(&mut is_result, message.role() == "tool");
        match message.role() {
            "tool" => {
                let text = format!("<tool_response>\n{}\n</tool_response>", message.content());
                match all.last_mut().filter(|_| was_result) {
                    Some(before) => before.append(&format!("\n{text}")),
                    None => all.push(Message::new("user", &text)),
                }
            }
            MODEL if !message.calls().is_empty() => {
                let calls = message.calls().iter().map(|call| format!("{open}\n{}\n{close}", written(call)));
                let content = Some(message.content().to_owned()).filter(|content| !content.is_empty());
                all.push(Message::new(MODEL, &content.into_iter().chain(calls).collect::<Vec<_>>().join("\n")));
            }
            _ => all.push(message.clone()),
        }
    }
    if !takes_system {
        match all.iter_mut().find(|message| message.role() == "user") {
            Some(question) => question.prepend(&format!("{first}\n\n")),
            None => all.insert(0, Message::new("user", &first)),
        }
    }
    all
}

fn written(call: &Json) -> String {
    let call = call.get("function").unwrap_or(call);
    let [name, arguments] = ["name", "arguments"].map(|key| call.get(key).map_or("null".to_owned(), Json::spaced));
    format!("{{\"name\": {name}, \"arguments\": {arguments}}}")
}
