import { useState } from "preact/hooks";
import { toBase64 } from "../../client/base64.ts";
import { type ProcessName, pathOf } from "../../client/processes.ts";
import { request } from "../data/api.ts";
import { type Problem, problemOf } from "../data/problem.ts";
import { Button } from "../parts/button.tsx";
import { Checkbox, Field } from "../parts/field.tsx";
import { ProblemNote } from "../parts/problem-note.tsx";

/** The open standard input of a process; sends one line at a time. */
export function StandardInput({ process }: { readonly process: ProcessName }) {
  const [text, setText] = useState("");
  const [hasLineEnd, setLineEnd] = useState(true);
  const [isBusy, setBusy] = useState(false);
  const [isClosed, setClosed] = useState(false);
  const [problem, setProblem] = useState<Problem>();
  const send = async (content: string, close: boolean) => {
    setBusy(true);
    setProblem(undefined);
    // Before the request ends: text typed from now on is the next line.
    setText("");
    try {
      const encoded = toBase64(new TextEncoder().encode(content));
      const headers = { "content-type": "application/json" };
      const body = JSON.stringify({ content: encoded, encoding: "base64", close });
      await request(`/v1${pathOf(process)}/stdin`, { method: "POST", headers, body });
      if (close) setClosed(true);
    } catch (error) {
      setText((next) => (next === "" ? text : next));
      setProblem(problemOf(error));
    }
    setBusy(false);
  };
  if (isClosed) return <p class="muted">Standard input is closed.</p>;
  return (
    <form
      class="run-input stack gap-2"
      aria-label="Standard input"
      onSubmit={(event) => {
        event.preventDefault();
        void send(hasLineEnd ? `${text}\n` : text, false);
      }}
    >
      <Field label="Standard input" isMono value={text} onValue={setText} />
      <div class="row wrap gap-2-4">
        <Checkbox label="Add a line end" isChecked={hasLineEnd} onChecked={setLineEnd} />
        <Button type="submit" isBusy={isBusy}>
          Send
        </Button>
        <Button isBusy={isBusy} onClick={() => void send("", true)}>
          Close the input
        </Button>
      </div>
      {problem === undefined ? null : <ProblemNote problem={problem} title="The input was not sent" />}
    </form>
  );
}
