//! Decodes a message into a job: every rule of publishing is here.

use std::sync::Arc;

use uuid::Uuid;

use super::nearest::nearest;
use super::{
    Content, Cost, CostBound, CostRule, CostSource, Job, JobLane, LanePart, MaxCost, Message, PlanRules,
    Reason, Rejection, ReplyTo, Request, Rules, Times, Value, header, instant, path, shown, value,
};
use crate::time::Micros;

/// The headers that a producer may set, without the `paced-`.
pub const KNOWN: [&str; 7] = ["lane", "plan", "method", "path", "not-before", "deadline", "cost"];

/// The headers that paced writes on dead letters and on jobs that are parked. They are accepted and have no effect,
/// so that a letter can be published again unchanged.
pub const STRIPPED: [&str; 14] = [
    "reason",
    "detail",
    "status",
    "attempts",
    "routing-key",
    "dead-at",
    "response",
    "parked",
    "parked-for",
    "first-seen",
    "throttled",
    "refused",
    "unreadable",
    "expiration",
];

/// The methods that a job may have.
pub const METHODS: [&str; 6] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"];

/// The prefix of the headers with a job's cost for one limit, without the `paced-`.
const COST_PREFIX: &str = "cost-";

/// The longest lane key, in bytes.
const MAX_LANE: usize = 128;

/// The highest priority; higher values count as this one.
const MAX_PRIORITY: u8 = 9;

/// Decodes the job of a message.
///
/// Whether its deadline has passed is not decided here, since that requires a clock.
///
/// # Errors
/// The first thing that is wrong with it; nothing that is wrong is ignored.
pub fn decode(message: &Message, rules: &Rules) -> Result<Job, Rejection> {
    if let Some(detail) = &message.malformed {
        return Err(Rejection::malformed(detail));
    }
    let id = id(message.message_id.as_deref())?;
    let Content { body, content_type, content_encoding } = &message.content;
    let content_type = header::property("content_type", content_type.as_deref())?;
    let content_encoding = header::codings(content_encoding.as_deref());
    let fields = Fields::read(&message.headers, rules)?;
    let plan = fields.plan.or(rules.lanes.default_plan);
    let cost = job_cost(&fields, &message.headers, plan, rules)?;
    if body.len() > rules.max_body {
        let (is, most) = (body.len(), rules.max_body);
        return Err(Rejection::new(
            Reason::BodyTooLarge,
            format!("the body has {is} bytes; send at most {most}, or raise `http.max_body`"),
        ));
    }
    let reply = message.reply_to.as_deref().filter(|queue| !queue.is_empty());
    reply.map_or(Ok(()), |queue| rules.reply.permit(queue)).map_err(Rejection::malformed)?;
    let name = fields.lane.unwrap_or_default();
    let parts = parts(&name, plan, &message.routing_key, rules)?;
    Ok(Job {
        id,
        lane: JobLane { name, parts },
        cost,
        plan,
        priority: message.priority.unwrap_or(0).min(MAX_PRIORITY),
        times: Times {
            // Clients without a clock send 0.
            made_at: message.timestamp.filter(|number| *number > 0).map(instant::made_at),
            not_before: fields.not_before,
            deadline: fields.deadline,
        },
        request: Request {
            method: allowed(fields.method, &rules.methods)?,
            path: fields.path.unwrap_or_default(),
            headers: fields.request,
        },
        content: Content { body: body.clone(), content_type, content_encoding },
        reply: reply
            .map(|queue| ReplyTo { queue: queue.to_owned(), correlation_id: message.correlation_id.clone() }),
    })
}

/// The units that a job of this plan takes of its limits.
fn job_cost(
    fields: &Fields,
    headers: &[(String, Value)],
    plan: Option<usize>,
    rules: &Rules,
) -> Result<Cost, Rejection> {
    let most = plan.and_then(|plan| rules.plans.get(plan)).map_or(&rules.max_cost, |plan| &plan.max_cost);
    let too_large = |detail: String| Rejection::new(Reason::CostTooLarge, detail);
    let units = fields
        .cost
        .map_or(Ok(1), |cost| fitting("paced-cost", cost, most, "`max_cost`"))
        .map_err(too_large)?;
    let mut own = Vec::new();
    for rule in rules.costs.iter().filter(|rule| rule.applies_to(plan)) {
        let given = fields.costs.iter().find(|(name, _)| name == rule.own_name()).map(|(_, cost)| *cost);
        let cost = given.map_or_else(|| rule.of(headers), Ok)?;
        own.push((Arc::clone(&rule.limit), rule.fitting(cost).map_err(too_large)?));
    }
    let known = |name: &String| rules.costs.iter().any(|rule| rule.own_name() == name);
    match fields.costs.iter().find(|(name, _)| !known(name)) {
        Some((name, _)) => Err(no_such_limit(name, &rules.costs)),
        None => Ok(Cost { units, own }),
    }
}

fn id(given: Option<&str>) -> Result<String, Rejection> {
    match given {
        None => Ok(Uuid::now_v7().to_string()),
        Some(id) if (1..=255).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_graphic()) => {
            Ok(id.to_owned())
        }
        Some(id) => Err(Rejection::new(
            Reason::BadId,
            format!(
                "message_id `{}` is no job id; send 1 to 255 visible ASCII characters",
                shown(id.as_bytes(), 40)
            ),
        )),
    }
}

/// The values of the headers.
#[derive(Default)]
struct Fields {
    lane: Option<String>,
    plan: Option<usize>,
    method: Option<&'static str>,
    path: Option<String>,
    not_before: Option<Micros>,
    deadline: Option<Micros>,
    cost: Option<i128>,
    /// The costs by the names of limits.
    costs: Vec<(String, i128)>,
    request: Vec<(String, String)>,
}

impl Fields {
    fn read(headers: &[(String, Value)], rules: &Rules) -> Result<Self, Rejection> {
        let mut fields = Self::default();
        for (name, value) in headers {
            if let Some(key) = name.strip_prefix("paced-") {
                fields.paced(key, name, value, rules)?;
            } else if let Some(key) = name.strip_prefix("http-") {
                let (key, value) = header::request(key, value, rules)?;
                if fields.request.iter().any(|(other, _)| *other == key) {
                    return Err(twice(name));
                }
                fields.request.push((key, value));
            }
        }
        fields.trace(headers);
        Ok(fields)
    }

    fn paced(&mut self, key: &str, name: &str, value: &Value, rules: &Rules) -> Result<(), Rejection> {
        let first = match key {
            "lane" => self.lane.replace(lane(name, value)?).is_none(),
            "plan" => self.plan.replace(plan(name, value, &rules.plans)?).is_none(),
            "method" => self.method.replace(method(name, value)?).is_none(),
            "path" => {
                let path = path::check(value::text(name, value)?, rules.encoded_slash)?;
                self.path.replace(path).is_none()
            }
            "not-before" => self.not_before.replace(instant::instant(name, value)?).is_none(),
            "deadline" => self.deadline.replace(instant::instant(name, value)?).is_none(),
            "cost" => self.cost.replace(cost(name, value)?).is_none(),
            _ if STRIPPED.contains(&key) => true,
            _ if key.strip_prefix(COST_PREFIX).is_some_and(|limit| !limit.is_empty()) => {
                let limit = &key[COST_PREFIX.len()..];
                let first = self.costs.iter().all(|(other, _)| other != limit);
                self.costs.push((limit.to_owned(), cost(name, value)?));
                first
            }
            _ => return Err(unknown(key)),
        };
        if first { Ok(()) } else { Err(twice(name)) }
    }

    /// Passes the trace context on, unless the job sets it as an allowed header.
    fn trace(&mut self, headers: &[(String, Value)]) {
        for name in ["traceparent", "tracestate"] {
            if self.request.iter().any(|(other, _)| other == name) {
                continue;
            }
            let found = headers.iter().find(|(other, _)| other == name);
            if let Some(value) = found.and_then(|(_, value)| header::trace(value)) {
                self.request.push((name.to_owned(), value));
            }
        }
    }
}

fn lane(name: &str, value: &Value) -> Result<String, Rejection> {
    let text = value::text(name, value)?;
    if text.len() > MAX_LANE {
        let is = text.len();
        return Err(Rejection::malformed(format!("`{name}` has {is} bytes; send at most {MAX_LANE}")));
    }
    Ok(text.to_owned())
}

/// The values of the key by which the downstream's lanes are made; a part that the job does not have is empty.
fn parts(
    lane: &str,
    plan: Option<usize>,
    routing_key: &str,
    rules: &Rules,
) -> Result<Arc<[String]>, Rejection> {
    if rules.lanes.parts.is_empty() {
        // This allocates nothing.
        return Ok(Arc::default());
    }
    let plan = || plan.and_then(|plan| rules.plans.get(plan)).filter(|plan| plan.name != PlanRules::LANES);
    let value = |part: &LanePart| match part {
        LanePart::Lane => Ok(lane.to_owned()),
        LanePart::Plan => Ok(plan().map(|plan| plan.name.clone()).unwrap_or_default()),
        LanePart::Word(place) => {
            let word = routing_key.split('.').nth(*place).unwrap_or_default();
            if word.len() > MAX_LANE {
                let (is, place) = (word.len(), place + 1);
                let text = format!("word {place} of the routing key has {is} bytes; send at most {MAX_LANE}");
                return Err(Rejection::malformed(text));
            }
            Ok(word.to_owned())
        }
    };
    rules.lanes.parts.iter().map(value).collect()
}

fn method(name: &str, value: &Value) -> Result<&'static str, Rejection> {
    let text = value::text(name, value)?;
    METHODS.into_iter().find(|method| method.eq_ignore_ascii_case(text)).ok_or_else(|| {
        let (text, known) = (shown(text.as_bytes(), 40), METHODS.join(", "));
        Rejection::malformed(format!("`{name}` is `{text}`; send one of {known}"))
    })
}

/// The method of a job, if the downstream takes it.
fn allowed(given: Option<&'static str>, methods: &[String]) -> Result<&'static str, Rejection> {
    let method = given.unwrap_or("POST");
    if methods.iter().any(|allowed| allowed == method) {
        return Ok(method);
    }
    let known = methods.join(", ");
    Err(Rejection::malformed(match given {
        Some(_) => {
            format!("`paced-method` is `{method}`, which is not in `http.methods`; send one of {known}")
        }
        None => format!("`paced-method` is absent, and POST is not in `http.methods`; send one of {known}"),
    }))
}

fn plan(name: &str, value: &Value, plans: &[PlanRules]) -> Result<usize, Rejection> {
    let text = value::text(name, value)?;
    let named = |plan: &&PlanRules| plan.name != PlanRules::LANES;
    plans.iter().position(|plan| plan.name == text && named(&plan)).ok_or_else(|| {
        let text = shown(text.as_bytes(), 40);
        let known: Vec<&str> = plans.iter().filter(named).map(|plan| plan.name.as_str()).collect();
        Rejection::malformed(match &known[..] {
            [] => format!("`{name}` is `{text}`, but no plan is configured; leave it out"),
            known => format!("`{name}` is `{text}`, which is no plan; send one of {}", known.join(", ")),
        })
    })
}

fn cost(name: &str, value: &Value) -> Result<i128, Rejection> {
    let cost = value::integer(name, value)?;
    if cost < 1 {
        return Err(Rejection::malformed(format!("`{name}` is {cost}; send at least 1")));
    }
    Ok(cost)
}

impl CostRule {
    /// As [`fitting`], for this limit.
    pub(super) fn fitting(&self, cost: i128) -> Result<u32, String> {
        let what = match &self.source {
            CostSource::Fixed(_) => format!("cost of {}", self.own_name()),
            CostSource::Header(name) => shown(name.as_bytes(), 60),
        };
        fitting(&what, cost, &self.max_cost, "`max_cost` of this limit")
    }

    /// The cost of a message with these headers. A header that holds no cost is a mistake; a missing header is not.
    fn of(&self, headers: &[(String, Value)]) -> Result<i128, Rejection> {
        let name = match &self.source {
            CostSource::Fixed(cost) => return Ok((*cost).into()),
            CostSource::Header(name) => name,
        };
        let found = headers.iter().find(|(other, _)| other == name);
        match (found, self.default) {
            (Some((_, value)), _) => cost(name, value),
            (None, Some(default)) => Ok(default.into()),
            (None, None) => Err(Rejection::malformed(format!(
                "`{}` is absent, and the limit `{}` costs what it says; send a whole number",
                shown(name.as_bytes(), 60),
                self.own_name()
            ))),
        }
    }
}

/// The cost that a message gives, or 1 where it gives none that is a cost.
#[must_use]
pub fn cost_of(message: &Message) -> u32 {
    let header = message.headers.iter().find(|(name, _)| name == "paced-cost");
    let given = header.and_then(|(name, value)| cost(name, value).ok());
    given.map_or(1, |cost| u32::try_from(cost).unwrap_or(u32::MAX))
}

/// Writes into the message its cost for each limit that counts by a header of another name, which `header` finds.
/// Lines of JSON have no place for such headers. A header that holds no cost is left out.
pub fn name_costs(message: &mut Message, costs: &[CostRule], header: impl Fn(&str) -> Option<Value>) {
    for rule in costs {
        let CostSource::Header(source) = &rule.source else { continue };
        let (own_name, name) = (rule.own_name(), format!("paced-{COST_PREFIX}{}", rule.own_name()));
        // The header would set the cost of all limits of this name.
        let is_theirs = costs.iter().all(|other| other.own_name() != own_name || other.source == rule.source);
        let is_given = message.headers.iter().any(|(known, _)| *known == name);
        let found = header(source).filter(|_| is_theirs && !is_given);
        if let Some(cost) = found.and_then(|value| cost(source, &value).ok()) {
            message.headers.push((name, Value::Integer(cost)));
        }
    }
}

/// The cost, which `what` gives, if the limits of the job can hold it; `key` is the setting for a higher one.
pub(super) fn fitting(what: &str, cost: i128, most: &MaxCost, key: &str) -> Result<u32, String> {
    u32::try_from(cost).ok().filter(|cost| *cost <= most.units).ok_or_else(|| {
        let way = match most.bound {
            CostBound::Given => "split the job, or raise it".to_owned(),
            CostBound::Minute(_) => format!("split the job, or set {key}"),
            CostBound::Held(_) | CostBound::Uncounted => "split the job".to_owned(),
        };
        format!("`{what}` is {cost}; `max_cost` is {most}: {way}")
    })
}

fn unknown(key: &str) -> Rejection {
    let hint = match nearest(key, &KNOWN) {
        Some(near) => format!("did you mean `paced-{near}`?"),
        None => format!("known are paced-{}", KNOWN.join(", paced-")),
    };
    let key = shown(key.as_bytes(), 60);
    Rejection::new(Reason::UnknownHeader, format!("`paced-{key}` does not exist; {hint}"))
}

/// A cost for a limit that has none of its own.
fn no_such_limit(limit: &str, costs: &[CostRule]) -> Rejection {
    let mut names: Vec<&str> = costs.iter().map(CostRule::own_name).collect();
    names.sort_unstable();
    names.dedup();
    let there = match &*names {
        [] => "no limit here has one; leave it out".to_owned(),
        names => format!("the limits that have one are {}", names.join(", ")),
    };
    let name = shown(limit.as_bytes(), 60);
    let detail = format!("`paced-{COST_PREFIX}{name}` is for a limit with a `cost` of its own: {there}");
    Rejection::new(Reason::UnknownHeader, detail)
}

fn twice(name: &str) -> Rejection {
    Rejection::malformed(format!("`{}` is given twice; send it once", shown(name.as_bytes(), 60)))
}

#[cfg(test)]
mod tests;
