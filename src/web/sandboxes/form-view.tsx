import { useEffect, useRef, useState } from "preact/hooks";
import { openSandbox } from "../../client/sandboxes.ts";
import { isFocusFree } from "../browser/focus.ts";
import { navigate, useRoute } from "../browser/router.ts";
import { api } from "../data/api.ts";
import { type Problem, problemOf } from "../data/problem.ts";
import { useSession } from "../data/session.ts";
import { PageHeader } from "../parts/breadcrumbs.tsx";
import { Button } from "../parts/button.tsx";
import { Checkbox, Field, Select } from "../parts/field.tsx";
import { ProblemNote } from "../parts/problem-note.tsx";
import { ImageField } from "../run/form/image-field.tsx";
import { TIMEOUT_CHOICES } from "./actions/life-question.tsx";
import { EMPTY_FORM, type FieldProblems, FORM_FIELDS, fieldOf, requestOf, type SandboxForm } from "./model/form.ts";

/** The form of a sandbox: empty, or on an image (`?image=`). */
export function FormView() {
  const { parameters } = useRoute();
  const image = parameters.get("image") ?? "";
  return (
    <div class="run-form stack gap-4 shrink">
      <PageHeader
        heading="Open a sandbox"
        crumbs={[{ label: "Sandboxes", href: "/sandboxes" }, { label: "Open a sandbox" }]}
      />
      <Form key={image} initial={{ ...EMPTY_FORM, image }} />
    </div>
  );
}

function Form({ initial }: { readonly initial: SandboxForm }) {
  const [form, setForm] = useState(initial);
  const [problems, setProblems] = useState<FieldProblems>({});
  const [problem, setProblem] = useState<Problem>();
  const [isBusy, setBusy] = useState(false);
  const place = useRef<HTMLFormElement>(null);
  const { may } = useSession();
  const set = (values: Partial<SandboxForm>) => setForm((current) => ({ ...current, ...values }));
  const tell = (next: FieldProblems) => {
    setProblems(next);
    // Moves the focus to the first wrong field.
    requestAnimationFrame(() => place.current?.querySelector<HTMLElement>("[aria-invalid=true]")?.focus());
  };
  const open = async () => {
    setProblem(undefined);
    const result = requestOf(form);
    if ("problems" in result) return tell(result.problems);
    setProblems({});
    setBusy(true);
    try {
      const { uuid } = await openSandbox(api, result.request, 0);
      navigate(`/sandboxes/${uuid}`);
    } catch (error) {
      const failure = problemOf(error);
      const field = fieldOf(failure.details["field"]);
      if (FORM_FIELDS.has(field)) tell({ [field]: failure.message });
      else setProblem(failure);
      setBusy(false);
    }
  };
  useEffect(() => {
    if (isFocusFree()) place.current?.querySelectorAll("input")[initial.image === "" ? 0 : 1]?.focus();
  }, []);
  return (
    <form
      ref={place}
      class="run-form-fields stack gap-4"
      aria-label="Open a sandbox"
      onSubmit={(event) => {
        event.preventDefault();
        if (!isBusy) void open();
      }}
    >
      <FormFields form={form} set={set} problems={problems} />
      {problem === undefined ? null : <ProblemNote problem={problem} title="The sandbox was not opened" />}
      <div class="row wrap gap-2-3">
        <Button tone="primary" type="submit" icon="sandbox" isBusy={isBusy} disabled={!may("instances:spawn")}>
          Open
        </Button>
        {may("instances:spawn") ? null : (
          <span class="muted">The token of this session lacks the scope instances:spawn.</span>
        )}
      </div>
    </form>
  );
}

interface FieldsProps {
  readonly form: SandboxForm;
  readonly set: (values: Partial<SandboxForm>) => void;
  readonly problems: FieldProblems;
}

function FormFields({ form, set, problems }: FieldsProps) {
  const { may } = useSession();
  return (
    <>
      <ImageField value={form.image} onValue={(image) => set({ image })} problem={problems["image"]} />
      <Field
        label="Name"
        isMono
        placeholder="dev"
        hint="Lower-case letters, digits and hyphens. Without one, the appliance makes a name."
        value={form.name}
        onValue={(name) => set({ name })}
        problem={problems["name"]}
      />
      <div class="run-form-grid gap-3">
        <Field
          label="Time"
          isMono
          placeholder="1h"
          value={form.timeout}
          onValue={(timeout) => set({ timeout })}
          problem={problems["timeout"]}
        />
        <Select
          label="Then"
          value={form.onTimeout}
          choices={TIMEOUT_CHOICES}
          onValue={(onTimeout) => set({ onTimeout })}
        />
        <Field
          label="Pause when idle for"
          isMono
          placeholder="never"
          value={form.idle}
          onValue={(idle) => set({ idle })}
          problem={problems["idle_timeout"]}
        />
      </div>
      <Checkbox
        label="Resume it for a request"
        hint="A request for a paused sandbox, such as a shell or a written file, starts its machine again."
        isChecked={form.autoResume}
        onChecked={(autoResume) => set({ autoResume })}
      />
      <Limits form={form} set={set} problems={problems} />
      <Field
        label="Network"
        isMono
        rows={3}
        placeholder={"*.example.org:443\n10.0.7.5:5432"}
        hint={
          may("instances:network")
            ? "Hosts that it may connect to, one per line. Empty: none."
            : "The token of this session lacks the scope instances:network."
        }
        isDisabled={!may("instances:network")}
        value={form.rules}
        onValue={(rules) => set({ rules })}
        problem={problems["network"]}
      />
    </>
  );
}

function Limits({ form, set, problems }: FieldsProps) {
  return (
    <div class="run-form-grid gap-3">
      <Field
        label="CPUs"
        isMono
        placeholder="1"
        value={form.vcpus}
        onValue={(vcpus) => set({ vcpus })}
        problem={problems["resources.vcpus"]}
      />
      <Field
        label="Memory"
        isMono
        placeholder="512M"
        value={form.memory}
        onValue={(memory) => set({ memory })}
        problem={problems["resources.memory_bytes"]}
      />
      <Field
        label="Disk"
        isMono
        placeholder="10G"
        value={form.disk}
        onValue={(disk) => set({ disk })}
        problem={problems["resources.disk_bytes"]}
      />
    </div>
  );
}
