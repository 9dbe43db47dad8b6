import { useState } from "preact/hooks";
import { Button } from "../../parts/button.tsx";
import { CopyButton } from "../../parts/copy-button.tsx";
import { Dialog } from "../../parts/dialog.tsx";
import type { FieldProblems } from "../../parts/form/values.ts";
import { coppiceRun, curlRun, type LocalRequest } from "./commands.ts";
import { type RunForm, requestOf } from "./run-form.ts";

/** The run of the form as commands for a terminal. */
export function CopyAs({ form }: { readonly form: RunForm }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <>
      <Button icon="copy" onClick={() => setOpen(true)}>
        Copy as a command
      </Button>
      {isOpen ? <Commands form={form} onClose={() => setOpen(false)} /> : null}
    </>
  );
}

function Commands({ form, onClose }: { readonly form: RunForm; readonly onClose: () => void }) {
  const result = requestOf(form);
  return (
    <Dialog title="The same run in a terminal" isWide onClose={onClose}>
      {"problems" in result ? <Problems problems={result.problems} /> : <Texts form={form} request={result.request} />}
    </Dialog>
  );
}

function Problems({ problems }: { readonly problems: FieldProblems }) {
  return (
    <ul>
      {Object.entries(problems).map(([field, text]) => (
        <li key={field}>{text}</li>
      ))}
    </ul>
  );
}

function Texts({ form, request }: { readonly form: RunForm; readonly request: LocalRequest["request"] }) {
  const names = Object.fromEntries(form.files.flatMap(({ path, name }) => (name === null ? [] : [[path, name]])));
  const { text, unsaid } = coppiceRun({ request, names });
  return (
    <div class="stack gap-3 shrink">
      <Command title="coppice" text={text} />
      {unsaid.length === 0 ? null : <p class="muted">It has no option for {unsaid.join("; ")}.</p>}
      <Command title="curl" text={curlRun({ request }, location.origin)} />
      <p class="muted">Both take the token from the variable COPPICE_TOKEN.</p>
    </div>
  );
}

function Command({ title, text }: { readonly title: string; readonly text: string }) {
  return (
    <section aria-label={title}>
      <h3 class="row gap-2 text-size strong">
        {title} <CopyButton text={text} label={`Copy the command for ${title}`} />
      </h3>
      <pre class="run-command-text inset fixed small" tabIndex={0}>
        {text}
      </pre>
    </section>
  );
}
