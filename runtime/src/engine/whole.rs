//! Whole answers, for callers that do not follow tokens.

use std::collections::HashMap;

use weir_abi::HeadResult;

use super::{Completion, Engine, Event, FinishReason, Request, RequestId, Usage};
use crate::error::{RequestError, RuntimeError};
use crate::forward::{StepFault, StepModel};

impl<M: StepModel> Engine<M> {
    /// Serves these requests, and whatever else is queued, and returns their answers in order.
    pub fn generate(&mut self, requests: Vec<Request>) -> Result<Vec<Completion>, RuntimeError> {
        let ids = self.submit_all(requests)?;
        self.complete(&ids)
    }

    /// Queues all of these requests or none.
    fn submit_all(&mut self, requests: Vec<Request>) -> Result<Vec<RequestId>, RequestError> {
        let rules = self.rules();
        requests.iter().try_for_each(|request| rules.check(request))?;
        requests.into_iter().map(|request| self.submit(request)).collect()
    }

    /// Serves these requests, none of which has had a token yet, and whatever else is queued, and returns
    /// their answers in order.
    pub fn complete(&mut self, ids: &[RequestId]) -> Result<Vec<Completion>, RuntimeError> {
        let mut answers: HashMap<RequestId, Answer> =
            ids.iter().map(|id| (*id, Answer::default())).collect();
        let mut open = ids.len();
        while open > 0 {
            self.step(|id, event| {
                let Some(answer) = answers.get_mut(&id) else { return };
                match event {
                    Event::Token { token, text, .. } => {
                        answer.ids.push(token);
                        answer.text.push_str(text);
                    }
                    Event::Embedding { .. } => {}
                    Event::Finished { text, reason, stop, usage } => {
                        answer.text.push_str(text);
                        answer.end = Some(Ok((reason, stop, usage)));
                        open -= 1;
                    }
                    Event::Failed(fault) => {
                        answer.end = Some(Err(fault));
                        open -= 1;
                    }
                }
            });
        }
        ids.iter()
            .filter_map(|id| answers.remove(id))
            .filter_map(|Answer { ids, text, end }| Some((ids, text, end?)))
            .map(|(ids, text, end)| {
                let (reason, stop, usage) = end?;
                Ok(Completion { ids, text, reason, stop, usage })
            })
            .collect()
    }
}

/// Vectors, for callers that do not follow events.
impl<M: StepModel> Engine<M> {
    /// The embeddings of these requests' prompts, in order. The model must give some
    /// ([`crate::Model::need_embeddings`]); an error names the first request that cannot be served.
    pub fn embeddings(&mut self, requests: Vec<Request>) -> Result<Vec<Vec<f32>>, RuntimeError> {
        if self.model.shape().head_result != HeadResult::Hidden {
            return Err(RuntimeError::NoEmbeddings);
        }
        let ids = self.submit_all(requests)?;
        let mut found: HashMap<RequestId, Vec<f32>> = HashMap::with_capacity(ids.len());
        let mut fault = None;
        while self.step(|id, event| match event {
            Event::Embedding { values } => {
                found.insert(id, values.to_vec());
            }
            Event::Failed(reason) => fault = Some(reason),
            Event::Token { .. } | Event::Finished { .. } => {}
        }) {}
        match fault {
            Some(fault) => Err(fault.into()),
            None => Ok(ids.iter().filter_map(|id| found.remove(id)).collect()),
        }
    }
}

/// An answer while it is being given.
#[derive(Default)]
struct Answer {
    ids: Vec<u32>,
    text: String,
    end: Option<Result<Ending, StepFault>>,
}

/// Why an answer ended, which stop text has ended it, and its counts.
type Ending = (FinishReason, Option<usize>, Usage);
