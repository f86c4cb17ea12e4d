//! How models write calls and thoughts, by the chat templates that they were published with.

/// How the calls of a model are written: between two marks, one or several.
pub struct Family {
    /// Its chat templates spell one of these.
    spelt: &'static [&'static str],
    pub open: &'static str,
    /// Empty: a call ends with the answer.
    pub close: &'static str,
    pub form: Form,
}

/// Between the name of a function and its arguments.
pub const ARGS: &str = "[ARGS]";

/// What stands between the marks.
#[derive(Clone, Copy, PartialEq)]
pub enum Form {
    /// {"name": ..., "arguments": {...}}, or a list of such.
    Json { is_list: bool },
    /// {"name": ..., "parameters": {...}}, without marks: the whole answer is a call.
    JsonAlone,
    /// call:name{key:value}, with texts between `quote`s.
    Braces { quote: &'static str },
    /// name(key=value), as in Python; one after another, or a list.
    Python { is_list: bool },
    /// name[ARGS]{...}
    Args,
    /// <function=name><parameter=key>value</parameter></function>
    Xml,
}

impl Family {
    /// Whether a call is JSON, so that a schema tells all that may be in it.
    pub fn is_json(&self) -> bool {
        matches!(self.form, Form::Json { .. } | Form::JsonAlone | Form::Args)
    }
}

const HERMES: Form = Form::Json { is_list: false };

/// The first whose mark a template spells. Several generations of a family have the marks of an older one too.
static FAMILIES: [Family; 11] = [
    // Qwen3-Coder, Qwen3.5
    Family { spelt: &["<function="], open: "<tool_call>", close: "</tool_call>", form: Form::Xml },
    // Hermes, Qwen2.5, Qwen3, SmolLM3
    Family { spelt: &["<tool_call>"], open: "<tool_call>", close: "</tool_call>", form: HERMES },
    // LFM2
    Family {
        spelt: &["<|tool_list_start|>", "<|tool_call_start|>"],
        open: "<|tool_call_start|>",
        close: "<|tool_call_end|>",
        form: Form::Python { is_list: true },
    },
    // Phi-4-mini, with a template that writes tools: the published one reads only a field of the system message
    Family {
        spelt: &["<|/tool_call|>"],
        open: "<|tool_call|>",
        close: "<|/tool_call|>",
        form: Form::Json { is_list: true },
    },
    // Granite 3
    Family { spelt: &["<|tool_call|>"], open: "<|tool_call|>", close: "", form: Form::Json { is_list: true } },
    // Gemma 4
    Family {
        spelt: &["<tool_call|>"],
        open: "<|tool_call>",
        close: "<tool_call|>",
        form: Form::Braces { quote: "<|\"|>" },
    },
    // FunctionGemma
    Family {
        spelt: &["<start_function_call>"],
        open: "<start_function_call>",
        close: "<end_function_call>",
        form: Form::Braces { quote: "<escape>" },
    },
    // Mistral since Magistral and Ministral 3
    Family { spelt: &[ARGS], open: "[TOOL_CALLS]", close: "", form: Form::Args },
    // Mistral
    Family { spelt: &["[TOOL_CALLS]"], open: "[TOOL_CALLS]", close: "", form: Form::Json { is_list: true } },
    // Llama 3
    Family { spelt: &["ipython"], open: "<|python_tag|>", close: "", form: Form::JsonAlone },
    // Templates with tools for Gemma 3
    Family { spelt: &["```tool_code"], open: "```tool_code\n", close: "```", form: Form::Python { is_list: false } },
];

/// What a model writes where its template writes no tools, and the tools are in the system message.
pub static PLAIN: Family = Family { spelt: &[], open: "<tool_call>", close: "</tool_call>", form: HERMES };

/// Of a chat template.
pub fn family(template: &str) -> &'static Family {
    FAMILIES.iter().find(|family| family.spelt.iter().any(|mark| template.contains(mark))).unwrap_or(&PLAIN)
}

/// The marks around thoughts.
pub type Thoughts = (&'static str, &'static str);

const THOUGHTS: [Thoughts; 5] = [
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|channel>thought", "<channel|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
];

/// Those whose end a chat template spells, or that it opens in a prompt: a template may open thoughts and leave it at
/// that. A message that ends with the mark opens none.
pub fn thoughts(template: &str, prompt: &str) -> Vec<Thoughts> {
    let is_known =
        |(open, close): &Thoughts| template.contains(close) || (template.contains(open) && is_open(prompt, open));
    THOUGHTS.into_iter().filter(is_known).collect()
}

/// Whether a prompt ends with the mark of thoughts.
pub fn is_open(prompt: &str, open: &str) -> bool {
    prompt.trim_end().ends_with(open)
}
