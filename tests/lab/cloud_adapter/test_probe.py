"""The probe of EC2."""
from tests.lab.cloud_adapter.probing import ProbeOnLab, enis_left, observed, verdicts
from ipamd.cloud.probe.report import markdown

def test_x(make_bench):
    bench = make_bench(attach_delay_s=2.0, detach_delay_s=2.0)
    r = ProbeOnLab(bench).run()
    print(markdown(r))
    r = ProbeOnLab(bench).run(is_real=False)
    print(markdown(r))
    assert 0
