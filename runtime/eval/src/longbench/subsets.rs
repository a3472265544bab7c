//! The 21 subsets. Prompts and lengths are data that LongBench publishes (`dataset2prompt.json`,
//! `dataset2maxlen.json`, MIT, THUDM): with other words scores could not be compared.

pub(super) enum Metric {
    WordF1,
    CharacterF1,
    RougeL,
    CharacterRougeL,
    Class,
    Number,
    Paragraph,
    ParagraphZh,
    CodeLine,
}

pub(super) struct Subset {
    pub(super) name: &'static str,
    pub(super) metric: Metric,
    /// Tokens of an answer.
    pub(super) tokens: usize,
    /// Whether only the answer's first line counts.
    pub(super) first_line: bool,
    pub(super) prompt: &'static str,
}

const PASSAGES: &str = "Answer the question based on the given passages. Only give me the answer and do not output any other words.\n\nThe following are given passages.\n{context}\n\nAnswer the question based on the given passages. Only give me the answer and do not output any other words.\n\nQuestion: {input}\nAnswer:";

const fn subset(name: &'static str, metric: Metric, tokens: usize, prompt: &'static str) -> Subset {
    Subset { name, metric, tokens, first_line: false, prompt }
}

const fn few_shot(
    name: &'static str,
    metric: Metric,
    tokens: usize,
    prompt: &'static str,
) -> Subset {
    Subset { name, metric, tokens, first_line: true, prompt }
}

pub(super) const SUBSETS: [Subset; 21] = [
    subset(
        "narrativeqa",
        Metric::WordF1,
        128,
        "You are given a story, which can be either a novel or a movie script, and a question. Answer the question as concisely as you can, using a single phrase if possible. Do not provide any explanation.\n\nStory: {context}\n\nNow, answer the question based on the story as concisely as you can, using a single phrase if possible. Do not provide any explanation.\n\nQuestion: {input}\n\nAnswer:",
    ),
    subset(
        "qasper",
        Metric::WordF1,
        128,
        "You are given a scientific article and a question. Answer the question as concisely as you can, using a single phrase or sentence if possible. If the question cannot be answered based on the information in the article, write \"unanswerable\". If the question is a yes/no question, answer \"yes\", \"no\", or \"unanswerable\". Do not provide any explanation.\n\nArticle: {context}\n\n Answer the question based on the above article as concisely as you can, using a single phrase or sentence if possible. If the question cannot be answered based on the information in the article, write \"unanswerable\". If the question is a yes/no question, answer \"yes\", \"no\", or \"unanswerable\". Do not provide any explanation.\n\nQuestion: {input}\n\nAnswer:",
    ),
    subset(
        "multifieldqa_en",
        Metric::WordF1,
        64,
        "Read the following text and answer briefly.\n\n{context}\n\nNow, answer the following question based on the above text, only give me the answer and do not output any other words.\n\nQuestion: {input}\nAnswer:",
    ),
    subset(
        "multifieldqa_zh",
        Metric::CharacterF1,
        64,
        "阅读以下文字并用中文简短回答：\n\n{context}\n\n现在请基于上面的文章回答下面的问题，只告诉我答案，不要输出任何其他字词。\n\n问题：{input}\n回答：",
    ),
    subset("hotpotqa", Metric::WordF1, 32, PASSAGES),
    subset("2wikimqa", Metric::WordF1, 32, PASSAGES),
    subset("musique", Metric::WordF1, 32, PASSAGES),
    subset(
        "dureader",
        Metric::CharacterRougeL,
        128,
        "请基于给定的文章回答下述问题。\n\n文章：{context}\n\n请基于上述文章回答下面的问题。\n\n问题：{input}\n回答：",
    ),
    subset(
        "gov_report",
        Metric::RougeL,
        512,
        "You are given a report by a government agency. Write a one-page summary of the report.\n\nReport:\n{context}\n\nNow, write a one-page summary of the report.\n\nSummary:",
    ),
    subset(
        "qmsum",
        Metric::RougeL,
        512,
        "You are given a meeting transcript and a query containing a question or instruction. Answer the query in one or more sentences.\n\nTranscript:\n{context}\n\nNow, answer the query based on the above meeting transcript in one or more sentences.\n\nQuery: {input}\nAnswer:",
    ),
    subset(
        "multi_news",
        Metric::RougeL,
        512,
        "You are given several news passages. Write a one-page summary of all news. \n\nNews:\n{context}\n\nNow, write a one-page summary of all the news.\n\nSummary:",
    ),
    subset(
        "vcsum",
        Metric::CharacterRougeL,
        512,
        "下面有一段会议记录，请你阅读后，写一段总结，总结会议的内容。\n会议记录：\n{context}\n\n会议总结：",
    ),
    few_shot(
        "trec",
        Metric::Class,
        64,
        "Please determine the type of the question below. Here are some examples of questions.\n\n{context}\n{input}",
    ),
    few_shot(
        "triviaqa",
        Metric::WordF1,
        32,
        "Answer the question based on the given passage. Only give me the answer and do not output any other words. The following are some examples.\n\n{context}\n\n{input}",
    ),
    few_shot(
        "samsum",
        Metric::RougeL,
        128,
        "Summarize the dialogue into a few short sentences. The following are some examples.\n\n{context}\n\n{input}",
    ),
    few_shot(
        "lsht",
        Metric::Class,
        64,
        "请判断给定新闻的类别，下面是一些例子。\n\n{context}\n{input}",
    ),
    subset(
        "passage_count",
        Metric::Number,
        32,
        "There are some paragraphs below sourced from Wikipedia. Some of them may be duplicates. Please carefully read these paragraphs and determine how many unique paragraphs there are after removing duplicates. In other words, how many non-repeating paragraphs are there in total?\n\n{context}\n\nPlease enter the final count of unique paragraphs after removing duplicates. The output format should only contain the number, such as 1, 2, 3, and so on.\n\nThe final answer is: ",
    ),
    subset(
        "passage_retrieval_en",
        Metric::Paragraph,
        32,
        "Here are 30 paragraphs from Wikipedia, along with an abstract. Please determine which paragraph the abstract is from.\n\n{context}\n\nThe following is an abstract.\n\n{input}\n\nPlease enter the number of the paragraph that the abstract is from. The answer format must be like \"Paragraph 1\", \"Paragraph 2\", etc.\n\nThe answer is: ",
    ),
    subset(
        "passage_retrieval_zh",
        Metric::ParagraphZh,
        32,
        "以下是若干段落文字，以及其中一个段落的摘要。请确定给定的摘要出自哪一段。\n\n{context}\n\n下面是一个摘要\n\n{input}\n\n请输入摘要所属段落的编号。答案格式必须是\"段落1\"，\"段落2\"等格式\n\n答案是：",
    ),
    subset(
        "lcc",
        Metric::CodeLine,
        64,
        "Please complete the code given below. \n{context}Next line of code:\n",
    ),
    subset(
        "repobench-p",
        Metric::CodeLine,
        64,
        "Please complete the code given below. \n{context}{input}Next line of code:\n",
    ),
];
