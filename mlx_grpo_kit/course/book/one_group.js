// The first page's picture (one_group.py): a click on an answer calls it right or wrong, and the numbers follow.
document.addEventListener("DOMContentLoaded", () => {
  const group = document.querySelector(".kit-group");
  if (!group) return;
  const {answers, before, after} = JSON.parse(group.querySelector("script").textContent);
  const rows = [...group.querySelectorAll("tbody tr")], buttons = rows.map(row => row.querySelector("button"));
  const said = group.querySelector(".kit-said"), percent = share => `${(100 * share).toFixed(0)}%`;
  const rewards = buttons.map(button => Number(button.getAttribute("aria-pressed") === "true"));
  const different = [...new Set(answers)];
  const count = ["None", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "All"];
  const draw = () => {
    const right = rewards.reduce((sum, reward) => sum + reward, 0), mean = right / rewards.length;
    const std = Math.sqrt(rewards.reduce((sum, reward) => sum + (reward - mean) ** 2, 0) / (rewards.length - 1));
    const now = after[different.reduce((sum, text, bit) => sum + (rewards[answers.indexOf(text)] << bit), 0)];
    rows.forEach((row, place) => {
      const advantage = (rewards[place] - mean) / (std + 1e-4), [, reward, push, likely] = row.children;
      const change = now[place] - before[place];
      row.className = advantage > 0 ? "kit-up" : advantage < 0 ? "kit-down" : "kit-level";
      buttons[place].setAttribute("aria-pressed", rewards[place] > 0);
      buttons[place].lastChild.data = rewards[place] ? " right" : " wrong";
      reward.textContent = rewards[place];
      push.firstChild.style.width = `${22 * Math.abs(advantage)}px`;
      push.lastChild.data = ` ${advantage > 0 ? "+" : advantage < 0 ? "−" : ""}${Math.abs(advantage).toFixed(2)}`;
      likely.querySelectorAll("i").forEach((bar, which) => { bar.style.width = percent([before, now][which][place]); });
      likely.lastChild.data = ` ${percent(before[place])} → ${percent(now[place])} ` +
        (change > 5e-4 ? "▲" : change < -5e-4 ? "▼" : "•");
    });
    const one = right === 1, [they, them] = one ? ["It is", "it"] : ["They are", "them"];
    said.textContent = `${count[right]} of eight answers ${one ? "is" : "are"} right. ` + (right % 8 === 0
      ? "Without a difference there is nothing to learn: every advantage is 0, and the step changes nothing."
      : `${they} better than the mean of the group, so ${one ? "its" : "their"} advantage is positive, ` +
        (rewards.every((reward, place) => !reward || now[place] > before[place])
          ? `and one step of GRPO makes ${them} likelier.`
          : "but answers share tokens, and a step that pushes many tokens at once can push a right answer down."));
  };
  buttons.forEach((button, place) => {
    button.disabled = false;
    button.addEventListener("click", () => {
      const verdict = 1 - rewards[place];  // on equal answers too
      answers.forEach((text, other) => { if (text === answers[place]) rewards[other] = verdict; });
      draw();
    });
  });
  draw();
});
