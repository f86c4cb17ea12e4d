//! What tools gave back.

use crate::error::{bad_argument, Result};
use crate::json::{quoted, Json};
use crate::message::Message;

/// Turns of a JSON list of {"content"}, with the "tool_call_id" or the "name" of the call; without them in the order of
/// the calls. A content that is no text is written as JSON.
pub fn results(json: &str, calls: &[Json]) -> Result<Vec<Message>> {
    if calls.is_empty() {
        return Err(bad_argument("no tool was called in the last answer, so there are no results to give"));
    }
    let value = Json::parse_given(json).map_err(|error| bad_argument(format!("tool results: not JSON ({error})")))?;
    let items = value.list().filter(|items| !items.is_empty());
    let items = items.ok_or_else(|| bad_argument("tool results must be a JSON list of {\"name\", \"content\"}"))?;
    let mut open: Vec<&Json> = calls.iter().collect(); // calls without a result
    let mut turns = Vec::new();
    for (number, item) in (1..).zip(items) {
        let refuse = |reason: String| bad_argument(format!("tool results: item {number}: {reason}"));
        let content = item.get("content").ok_or_else(|| refuse("it has no content".to_owned()))?;
        let content = content.text().map_or_else(|| content.spaced(), str::to_owned);
        let (id, name) = (item.get("tool_call_id"), item.get("name"));
        let fits = |call: &&Json| match (id, name) {
            (Some(id), _) => call.get("id") == Some(id),
            (None, Some(name)) => call.get("function").and_then(|function| function.get("name")) == Some(name),
            (None, None) => true,
        };
        let place = open.iter().position(fits).ok_or_else(|| {
            let wanted = id.or(name).and_then(Json::text).map_or_else(|| "more".to_owned(), quoted);
            refuse(format!("the last answer has no call {wanted} that waits for a result"))
        })?;
        turns.push(Message::result(open.remove(place), &content));
    }
    Ok(turns)
}
