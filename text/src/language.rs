//! A tokenizer and the chat template of its model: all that turns text into tokens and back.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use crate::chat::Writer;
use crate::constraint::vocabulary::Vocabulary;
use crate::control_tokens::{uncut, Kept, CUT};
use crate::error::{bad_argument, Result};
use crate::json::Json;
use crate::message::{Message, MODEL};
use crate::stream::Decoder;
use crate::template::{Setting, Template};
use crate::tokenizer::Tokenizer;
use crate::tools::around::Around;
use crate::tools::channels::Marks;
use crate::tools::constraint::Enders;
use crate::tools::families::{self, Family};
use crate::tools::{plain, Tools};

/// A tool and a call of it, to see whether and how a template writes them.
const PROBE: &str =
    r#"[{"name": "probe", "description": "A probe.", "parameters": {"type": "object", "properties": {}}}]"#;
const PROBE_ARGUMENTS: &str = r#"{"probe": "x"}"#;
const PROBE_IN_PYTHON: &str = "{'probe': 'x'}";

pub struct Language {
    pub tokenizer: Tokenizer,
    template: Option<Template>,
    source: String, // of the template
    family: OnceLock<Option<&'static Family>>,
    takes_system: OnceLock<bool>,
    takes_text_arguments: OnceLock<bool>,
    needs_parts: OnceLock<bool>,
    around: OnceLock<Around>,
    ends: Vec<i64>, // end-of-sequence tokens
    vocab_size: OnceLock<usize>,
    vocabulary: OnceLock<Arc<Vocabulary>>, // from the first constraint on
    enders: OnceLock<Arc<Enders>>,
}

impl Language {
    /// `file` are the bytes of a tokenizer.json, whose `path` errors name. `vocab_size` is the model's number of
    /// logits; None: the tokenizer's number of tokens.
    pub fn new(
        file: &[u8],
        path: &Path,
        chat_template: Option<String>,
        bos_token_id: Option<i64>,
        eos_token_ids: &[i64],
        vocab_size: Option<usize>,
    ) -> Result<Language> {
        let ends: Vec<i64> = bos_token_id.iter().chain(eos_token_ids).copied().collect();
        let source = chat_template.clone().unwrap_or_default();
        let tokenizer = Tokenizer::new(file, path, &source, &ends)?;
        Language::of(tokenizer, chat_template, bos_token_id, eos_token_ids, vocab_size)
    }

    /// The same language with another chat template; the tokenizer's vocabulary is shared.
    pub fn with_template(
        &self,
        path: &Path,
        chat_template: Option<String>,
        bos_token_id: Option<i64>,
    ) -> Result<Language> {
        let ends: Vec<i64> = bos_token_id.iter().chain(&self.ends).copied().collect();
        let source = chat_template.clone().unwrap_or_default();
        let tokenizer = self.tokenizer.with_template(path, &source, &ends)?;
        Language::of(tokenizer, chat_template, bos_token_id, &self.ends, self.vocab_size.get().copied())
    }

    fn of(
        tokenizer: Tokenizer,
        chat_template: Option<String>,
        bos_token_id: Option<i64>,
        eos_token_ids: &[i64],
        vocab_size: Option<usize>,
    ) -> Result<Language> {
        let source = chat_template.clone().unwrap_or_default();
        let template = match chat_template {
            Some(source) => {
                let bos = tokenizer.word(bos_token_id);
                let eos = tokenizer.word(eos_token_ids.first().copied());
                Some(Template::new(source, bos, eos)?)
            }
            None => None,
        };
        let vocab_size = vocab_size.map_or_else(OnceLock::new, OnceLock::from);
        let (family, takes_system, takes_text_arguments, needs_parts) = Default::default();
        let (around, vocabulary, enders) = Default::default();
        Ok(Language {
            tokenizer,
            template,
            source,
            family,
            takes_system,
            takes_text_arguments,
            needs_parts,
            around,
            ends: eos_token_ids.to_vec(),
            vocab_size,
            vocabulary,
            enders,
        })
    }

    /// The model's number of logits, as far as it is known.
    pub fn vocab_size(&self) -> usize {
        *self.vocab_size.get_or_init(|| self.tokenizer.size())
    }

    /// The tokens as constraints see them, made on the first call.
    pub fn vocabulary(&self) -> Result<Arc<Vocabulary>> {
        if let Some(made) = self.vocabulary.get() {
            return Ok(made.clone());
        }
        let made = Arc::new(Vocabulary::new(&self.tokenizer, self.vocab_size(), &self.ends)?);
        Ok(self.vocabulary.get_or_init(|| made).clone())
    }

    pub fn can_chat(&self) -> bool {
        self.template.is_some()
    }

    /// `kept` are the control tokens that stay whole in the model's turns; `edges`: messages and names are also cut at
    /// their ends, where a control token may span one.
    fn render_cut(&self, messages: &[Message], setting: &Setting, kept: &Kept, edges: bool) -> Result<String> {
        let Some(template) = &self.template else {
            return Err(bad_argument(
                "this bundle has no chat template, so it takes neither chats nor system messages; give it raw text",
            ));
        };
        let none = Kept::new();
        let cut = |text: &str, kept: &Kept| {
            let text = self.tokenizer.cut(text, kept);
            if edges {
                self.tokenizer.cut_edges(&text)
            } else {
                text
            }
        };
        let name = |name: &str| self.tokenizer.cut_name(name, edges);
        let message = |message: &Message| {
            let kept = if message.role() == MODEL { kept } else { &none };
            message.map(name, |text| cut(text, kept), |text| cut(text, &none))
        };
        let setting = setting.map(name, |text| cut(text, &none));
        let in_parts = |message: Message| if self.needs_parts() { message.with_parts() } else { message };
        template.render(&messages.iter().map(message).map(in_parts).collect::<Vec<_>>(), &setting)
    }

    /// Whether the chat template only accepts message content as a list of parts, as those of some image models do.
    fn needs_parts(&self) -> bool {
        *self.needs_parts.get_or_init(|| {
            if !["type", "text"].iter().all(|field| self.source.contains(field)) {
                return false; // a template that reads parts names both fields
            }
            let (question, setting) = (Message::new("user", "probe"), Setting::default());
            let setting = setting.map(str::to_owned, str::to_owned);
            let writes = |question: Message| {
                let rendered = self.template.as_ref().map(|template| template.render(&[question], &setting));
                rendered.is_some_and(|text| text.is_ok_and(|text| text.contains("probe")))
            };
            !writes(question.clone()) && writes(question.with_parts())
        })
    }

    /// Whether the chat template writes a conversation's tools. One that mentions `tools` may read only a message's field.
    fn writes_tools(&self) -> bool {
        let names = self.source.contains("tools");
        let (question, setting) = ([Message::new("user", "x")], Setting::default());
        let Some(Ok(without)) = names.then(|| self.render_cut(&question, &setting, &Kept::new(), false)) else {
            return names;
        };
        self.render_cut(&question, &probing(), &Kept::new(), false).map_or(names, |with| with != without)
    }

    /// How the chat template tells the model to write calls. None: it writes no tools, or calls in a form that is not
    /// known here. Then tools, calls and results are in messages, in the form of `plain`.
    fn family(&self) -> Option<&'static Family> {
        *self.family.get_or_init(|| families::family(&self.source).filter(|_| self.writes_tools()))
    }

    /// Whether the chat template writes a system message.
    fn takes_system(&self) -> bool {
        *self.takes_system.get_or_init(|| {
            let messages = [Message::new("system", "probe"), Message::new("user", "x")];
            let rendered = self.render_cut(&messages, &Setting::default(), &Kept::new(), false);
            rendered.is_ok_and(|text| text.contains("probe"))
        })
    }

    /// Whether the chat template wants the arguments of a call as JSON text: with an object it fails, or writes that as
    /// Python does.
    fn takes_text_arguments(&self) -> bool {
        *self.takes_text_arguments.get_or_init(|| {
            let [object, text] = [false, true].map(|as_text| self.probe_call(as_text));
            object.map_or(true, |written| written.contains(PROBE_IN_PYTHON))
                && text.is_ok_and(|written| written.contains(PROBE_ARGUMENTS))
        })
    }

    /// A chat with a call of the probe.
    fn probe_call(&self, as_text: bool) -> Result<String> {
        let arguments = Json::parse(PROBE_ARGUMENTS).expect("an object");
        let answer = Message::answer("", vec![("probe".to_owned(), arguments)], 0);
        let result = Message::result(&answer.calls()[0], "x");
        let answer = if as_text { answer.with_text_arguments() } else { answer };
        let setting = if self.family().is_some() { probing() } else { Setting::default() };
        self.render_cut(&[Message::new("user", "x"), answer, result], &setting, &Kept::new(), false)
    }

    /// What the model writes around calls.
    pub fn around(&self) -> &Around {
        self.around.get_or_init(|| match self.family() {
            Some(family) => {
                let rendered = self.probe_call(self.takes_text_arguments()).unwrap_or_default();
                Around::as_in(&rendered, family, "probe")
            }
            None => Around::usual(families::PLAIN.form),
        })
    }

    /// How the model writes calls.
    fn calls_family(&self) -> &'static Family {
        self.family().unwrap_or(&families::PLAIN)
    }

    /// The tokens that may complete the mark of a call, found on the first call.
    pub fn enders(&self) -> Result<Arc<Enders>> {
        let vocabulary = self.vocabulary()?;
        let make = || Arc::new(Enders::new(&self.tokenizer, &vocabulary, self.calls_family()));
        Ok(self.enders.get_or_init(make).clone())
    }

    /// The marks that the model writes in an answer to a prompt.
    pub fn marks(&self, tools: &Tools, prompt: &str) -> Marks {
        let calls = (!tools.list().is_empty()).then(|| self.calls_family());
        Marks { thoughts: families::thoughts(&self.source, prompt), calls }
    }
}

/// With the probe as the only tool.
fn probing() -> Setting {
    let mut setting = Setting::default();
    setting.tools = Tools::parse(PROBE).expect("a list of one function");
    setting
}

impl Writer for Language {
    fn cut(&self, text: &str) -> String {
        self.tokenizer.cut(text, &Kept::new())
    }

    /// A template may look for control tokens in the model's own turns, as for the `</think>` behind which an answer
    /// begins. Those that change what it writes stay whole in these turns, and no others. A control token of which the
    /// template writes one part and a message the other is cut between the two.
    fn render(&self, messages: &[Message], setting: &Setting) -> Result<String> {
        let named = Message::with_names(messages);
        let without;
        let (messages, setting) = match setting.tools.list() {
            tools if tools.is_empty() || self.family().is_some() => (&*named, setting),
            tools => {
                without = (plain::as_text(&named, tools, self.takes_system()), setting.without_tools());
                (without.0.as_slice(), &without.1)
            }
        };
        let with_text;
        let messages = if messages.iter().any(|message| !message.calls().is_empty()) && self.takes_text_arguments() {
            with_text = messages.iter().map(Message::with_text_arguments).collect::<Vec<_>>();
            with_text.as_slice()
        } else {
            messages
        };
        let own = messages.iter().filter(|message| message.role() == MODEL);
        let spelt = own.flat_map(|message| self.tokenizer.control_in(&message.content().replace(CUT, "")));
        let mut kept: Kept = spelt.filter(|word| self.source.contains(word)).collect();
        let mut rendered = self.render_cut(messages, setting, &kept, false)?;
        for word in kept.clone() {
            let fewer: Kept = kept.iter().filter(|other| **other != word).cloned().collect();
            match self.render_cut(messages, setting, &fewer, false) {
                Ok(without) if uncut(&without).eq(uncut(&rendered)) => {
                    (rendered, kept) = (without, fewer);
                }
                _ => (),
            }
        }
        match self.render_cut(messages, setting, &kept, true) {
            Ok(edged) if uncut(&edged).eq(uncut(&rendered)) => Ok(self.tokenizer.cut_spanning(&rendered, &edged)),
            _ => Ok(rendered),
        }
    }

    fn encode(&self, rendered: &str) -> Result<Vec<u32>> {
        self.tokenizer.encode_rendered(rendered)
    }

    fn decode(&self, ids: &[u32]) -> Result<String> {
        self.tokenizer.decode(ids)
    }

    fn has(&self, id: u32) -> bool {
        self.tokenizer.has(id)
    }
}
