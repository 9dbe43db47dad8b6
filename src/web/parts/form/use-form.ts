import type { RefObject } from "preact";
import { useRef, useState } from "preact/hooks";
import { type Problem, problemOf } from "../../data/problem.ts";
import { type FieldProblems, type FormResult, fieldOf } from "./values.ts";

interface FormOptions<Form, Request> {
  readonly initial: Form;
  readonly requestOf: (form: Form) => FormResult<Request>;
  /** Sends the request. The page may be another one when it resolves. */
  readonly send: (request: Request) => Promise<void>;
  /** fields of the API that the form has, whose errors are shown there */
  readonly fields: ReadonlySet<string>;
}

interface FormState<Form> {
  readonly form: Form;
  readonly set: (values: Partial<Form>) => void;
  readonly update: (change: (form: Form) => Form) => void;
  readonly problems: FieldProblems;
  /** an error that belongs to no field */
  readonly problem: Problem | undefined;
  readonly isBusy: boolean;
  /** for the form's element */
  readonly place: RefObject<HTMLFormElement | null>;
  /** Sends the form, or shows what is wrong in it. Does nothing while it is being sent. */
  readonly submit: () => Promise<void>;
}

/** The state of a form that makes one request. */
export function useForm<Form, Request>(options: FormOptions<Form, Request>): FormState<Form> {
  const { initial, requestOf, send, fields } = options;
  const [form, update] = useState(initial);
  const [problems, setProblems] = useState<FieldProblems>({});
  const [problem, setProblem] = useState<Problem>();
  const [isBusy, setBusy] = useState(false);
  const place = useRef<HTMLFormElement>(null);
  const tell = (next: FieldProblems) => {
    setProblems(next);
    // Moves the focus to the first wrong field.
    requestAnimationFrame(() => place.current?.querySelector<HTMLElement>("[aria-invalid=true]")?.focus());
  };
  const submit = async () => {
    if (isBusy) return;
    setProblem(undefined);
    const result = requestOf(form);
    if ("problems" in result) return tell(result.problems);
    setProblems({});
    setBusy(true);
    try {
      await send(result.request);
    } catch (error) {
      const failure = problemOf(error);
      const { field, rule } = failure.details;
      const name = fieldOf(field ?? (rule === undefined ? undefined : "network"));
      if (fields.has(name)) tell({ [name]: failure.message });
      else setProblem(failure);
      setBusy(false);
    }
  };
  const set = (values: Partial<Form>) => update((current) => ({ ...current, ...values }));
  return { form, set, update, problems, problem, isBusy, place, submit };
}
