//! How models write calls and thoughts, by the chat templates that they were published with.

/// How the calls of a model are written: between two marks, one or several.
pub struct Family {
    /// Its chat templates spell all of these.
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
    /// [{"tool_call_id": ..., "tool_name": ..., "parameters": {...}}]
    Actions,
    /// call:name{key:value}, with texts between `quote`s.
    Braces { quote: &'static str },
    /// name(key=value), as in Python, behind `before`; one after another, or a list.
    Python { before: &'static str },
    /// [name(key=value)], without marks.
    PythonAlone,
    /// name[ARGS]{...}
    Args,
    /// <function=name><parameter=key>value</parameter></function>
    Xml,
}

impl Family {
    /// Whether a call is JSON, so that a schema tells all that may be in it.
    pub fn is_json(&self) -> bool {
        matches!(self.form, Form::Json { .. } | Form::JsonAlone | Form::Actions | Form::Args)
    }

    /// Whether a call needs no mark: an answer that begins like one is one.
    pub fn is_alone(&self) -> bool {
        matches!(self.form, Form::JsonAlone | Form::PythonAlone)
    }
}

const HERMES: Form = Form::Json { is_list: false };
const LIST: Form = Form::Json { is_list: true };

const LFM2: Family = Family {
    spelt: &["<|tool_call_start|>"],
    open: "<|tool_call_start|>",
    close: "<|tool_call_end|>",
    form: Form::Python { before: "[" },
};

/// The first whose marks a template spells. Several generations of a family have the marks of an older one too.
static FAMILIES: [Family; 20] = [
    // MiniMax-M1
    Family { spelt: &[r"<tool_calls>\n{"], open: "<tool_calls>", close: "</tool_calls>", form: HERMES },
    // Jamba, Apriel, Hunyuan
    Family { spelt: &["<tool_calls>"], open: "<tool_calls>", close: "</tool_calls>", form: LIST },
    // Seed-OSS
    Family { spelt: &["<seed:tool_call>"], open: "<seed:tool_call>", close: "</seed:tool_call>", form: Form::Xml },
    // Nemotron Nano 2
    Family { spelt: &["<TOOLCALL>"], open: "<TOOLCALL>", close: "</TOOLCALL>", form: LIST },
    // Command R7B, Command A
    Family { spelt: &["<|START_ACTION|>"], open: "<|START_ACTION|>", close: "<|END_ACTION|>", form: Form::Actions },
    // Qwen3-Coder, Qwen3.5
    Family { spelt: &["<tool_call>", "<function="], open: "<tool_call>", close: "</tool_call>", form: Form::Xml },
    // Hermes, Qwen2.5, Qwen3, SmolLM3
    Family { spelt: &["<tool_call>"], open: "<tool_call>", close: "</tool_call>", form: HERMES },
    // MiniCPM3
    Family { spelt: &["<|tool_call_start|>", "```python"], form: Form::Python { before: "\n```python\n" }, ..LFM2 },
    LFM2,
    Family { spelt: &["<|tool_list_start|>"], ..LFM2 },
    // Phi-4-mini, with a template that writes tools: the published one reads only a field of the system message
    Family { spelt: &["<|/tool_call|>"], open: "<|tool_call|>", close: "<|/tool_call|>", form: LIST },
    // Granite 3
    Family { spelt: &["<|tool_call|>"], open: "<|tool_call|>", close: "", form: LIST },
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
    Family { spelt: &["[TOOL_CALLS]"], open: "[TOOL_CALLS]", close: "", form: LIST },
    // Templates with Python's calls for Llama 3.2, Llama 4 and Gemma 3, and ToolACE
    Family { spelt: &["[func_name1("], open: "<|python_start|>", close: "<|python_end|>", form: Form::PythonAlone },
    // Llama 4
    Family {
        spelt: &["ipython", "\"parameters\"", "<|header_start|>"],
        open: "<|python_start|>",
        close: "<|python_end|>",
        form: Form::JsonAlone,
    },
    // Llama 3
    Family { spelt: &["ipython", "\"parameters\""], open: "<|python_tag|>", close: "", form: Form::JsonAlone },
    // Templates with tools for Gemma 3
    Family { spelt: &["```tool_code"], open: "```tool_code\n", close: "```", form: Form::Python { before: "" } },
];

/// Templates that spell one of these write calls in a form of their own, with the marks of a family.
const OTHER_FORMS: [&str; 1] = ["<arg_key>"]; // GLM since 4.5

/// What a model writes where its template writes no tools, and the tools are in the messages.
pub static PLAIN: Family = Family { spelt: &[], open: "<tool_call>", close: "</tool_call>", form: HERMES };

/// Of a chat template that writes tools; nothing where it writes calls in a form that is not known.
pub fn family(template: &str) -> Option<&'static Family> {
    if OTHER_FORMS.iter().any(|mark| template.contains(mark)) {
        return None;
    }
    FAMILIES.iter().find(|family| family.spelt.iter().all(|mark| template.contains(mark)))
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
